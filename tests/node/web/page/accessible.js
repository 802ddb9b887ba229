// What a checker like axe would say of a page, as far as this page needs it. Its value: {faults, texts, names}.
(() => {
  const faults = [];
  let texts = 0;
  let names = 0;
  const shown = (element) => element.checkVisibility({ opacityProperty: true, visibilityProperty: true, contentVisibilityAuto: true });
  const where = (element) => `${element.tagName.toLowerCase()}${element.id ? `#${element.id}` : ""}${element.className && typeof element.className === "string" ? `.${element.className}` : ""}`;

  if (!document.documentElement.lang) faults.push("no lang");
  if (!document.title) faults.push("no title");
  for (const tag of ["main", "header", "footer"]) if (document.querySelectorAll(tag).length !== 1) faults.push(`not one ${tag}`);

  const ids = [...document.querySelectorAll("[id]")].map((element) => element.id);
  for (const id of ids) if (ids.filter((one) => one === id).length > 1) faults.push(`id ${id} twice`);

  const labelled = (element) => (element.getAttribute("aria-labelledby") ?? "").split(" ").filter(Boolean).map((id) => document.getElementById(id)?.textContent ?? "").join(" ");
  const label = (element) => (element.labels?.length ? [...element.labels].map((one) => one.textContent).join(" ") : "");
  const nameOf = (element) => (element.getAttribute("aria-label") || labelled(element) || label(element) || "").trim();
  for (const element of document.querySelectorAll("button, a, input, select, textarea, summary, progress, [tabindex], section, table")) {
    const own = element.matches("button, a, summary, h2") ? element.textContent.trim() : "";
    names += 1;
    if (shown(element) && !nameOf(element) && !own) faults.push(`${where(element)} has no name`);
  }
  for (const element of document.querySelectorAll("svg, img, canvas")) {
    if (element.closest("[aria-hidden=true]")) continue;
    if (element.getAttribute("role") !== "img" && element.tagName !== "IMG") faults.push(`${where(element)} is no image to a reader`);
    if (!nameOf(element) && !element.alt) faults.push(`${where(element)} has no text that says what it shows`);
  }

  const levels = [...document.querySelectorAll("h1, h2, h3, h4")].filter(shown).map((element) => Number(element.tagName[1]));
  if (levels[0] !== 1 || levels.filter((level) => level === 1).length !== 1) faults.push("heading: not one h1 that comes first");
  levels.forEach((level, i) => { if (i && level > levels[i - 1] + 1) faults.push(`heading of level ${level} after ${levels[i - 1]}`); });
  for (const head of document.querySelectorAll("th")) if (!head.getAttribute("scope")) faults.push("a th has no scope");
  for (const list of document.querySelectorAll("ul, ol")) if ([...list.children].some((child) => child.tagName !== "LI")) faults.push(`${where(list)} holds what is no item`);

  const canvas = document.createElement("canvas").getContext("2d", { willReadFrequently: true });
  const seen = new Map();
  const rgba = (colour) => {
    if (seen.has(colour)) return seen.get(colour);
    canvas.clearRect(0, 0, 1, 1);
    canvas.fillStyle = colour;
    canvas.fillRect(0, 0, 1, 1);
    const [r, g, b, a] = canvas.getImageData(0, 0, 1, 1).data;
    seen.set(colour, [r, g, b, a / 255]);
    return seen.get(colour);
  };
  const over = (top, below) => top.slice(0, 3).map((value, i) => value * top[3] + below[i] * (1 - top[3]));
  const paper = (element) => {
    const layers = [];
    for (let one = element; one; one = one.parentElement) {
      const layer = rgba(getComputedStyle(one).backgroundColor);
      layers.push(layer);
      if (layer[3] === 1) break;
    }
    return layers.reverse().reduce((below, top) => over(top, below), [255, 255, 255]);
  };
  const light = (colour) => {
    const [r, g, b] = colour.map((value) => (value / 255 <= 0.04045 ? value / 255 / 12.92 : ((value / 255 + 0.055) / 1.055) ** 2.4));
    return 0.2126 * r + 0.7152 * g + 0.0722 * b;
  };
  const walker = document.createTreeWalker(document.body, NodeFilter.SHOW_TEXT);
  while (walker.nextNode()) {
    const element = walker.currentNode.parentElement;
    if (!walker.currentNode.textContent.trim() || !element || element.closest("script, noscript, style, title") || !shown(element)) continue;
    const style = getComputedStyle(element);
    const below = paper(element);
    const ink = over(rgba(element.closest("svg") ? style.fill : style.color), below);
    const [a, b] = [light(ink), light(below)].sort((x, y) => y - x);
    const contrast = (a + 0.05) / (b + 0.05);
    texts += 1;
    if (contrast < 4.5) faults.push(`contrast ${contrast.toFixed(2)} of ${where(element)}: ${walker.currentNode.textContent.trim().slice(0, 40)}`);
  }
  return { faults: [...new Set(faults)], texts, names };
})()
