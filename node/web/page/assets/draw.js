// Elements, and nothing that ever turns text into markup: text is set as text, attributes by name.

const SVG = "http://www.w3.org/2000/svg";

export function make(tag, attributes = {}, ...children) {
  return fill(document.createElement(tag), attributes, children);
}

export function svg(tag, attributes = {}, ...children) {
  return fill(document.createElementNS(SVG, tag), attributes, children);
}

function fill(element, attributes, children) {
  for (const [name, value] of Object.entries(attributes)) {
    if (value !== null && value !== undefined && value !== false) element.setAttribute(name, value === true ? "" : value);
  }
  element.append(...children.flat().filter((child) => child !== null && child !== undefined && child !== false));
  return element;
}

export const at = (id) => document.getElementById(id);

export function put(id, ...children) {
  at(id).replaceChildren(...children.flat().filter((child) => child !== null && child !== undefined && child !== false));
}

export function say(id, text) {
  const element = at(id);
  if (element.textContent !== text) element.textContent = text;
}

// A bar whose width is a share of its track. Styles are set on the element: the page's policy forbids them in markup.
export function bar(share, kind = "") {
  const inner = make("i");
  inner.style.width = `${Math.min(100 * Math.max(share, 0), 100)}%`;
  return make("span", { class: `track ${kind}`, "aria-hidden": "true" }, inner);
}

export function none(text) {
  return make("p", { class: "none" }, text);
}

export function facts(pairs) {
  const rows = pairs.filter((pair) => pair && pair[1] !== null && pair[1] !== undefined && pair[1] !== "");
  return make("dl", { class: "facts" }, rows.flatMap(([term, value]) => [make("dt", {}, term), make("dd", {}, value)]));
}
