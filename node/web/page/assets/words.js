// Numbers, times and addresses as people read them. Knows nothing of what they mean.

export const short = (address) => (address.length > 14 ? `${address.slice(0, 6)}…${address.slice(-4)}` : address);

export const count = (value) => (value === null || value === undefined ? "–" : Math.round(value).toLocaleString("en"));

export const fixed = (value, digits = 2) => (value === null || value === undefined ? "–" : value.toFixed(digits));

// Never 100 % of what is not all, nor 0 % of what is something.
export function percent(share) {
  if (share === null || share === undefined) return "–";
  const exact = (share > 0 && share < 0.0995) || (share > 0.9905 && share < 1);
  return `${exact ? Math.min(Math.max(100 * share, 0.1), 99.9).toFixed(1) : Math.round(100 * share)} %`;
}

export const plural = (number, one, many = `${one}s`) => `${count(number)} ${number === 1 ? one : many}`;

export function tokens(value) {
  if (value === null || value === undefined) return "–";
  const digits = value !== 0 && Math.abs(value) < 0.01 ? 6 : 2;
  return value.toLocaleString("en", { minimumFractionDigits: 2, maximumFractionDigits: digits });
}

export function seconds(value) {
  if (value === null || value === undefined) return "–";
  if (value < 1) return `${Math.round(1000 * value)} ms`;
  return value < 100 ? `${value.toFixed(1)} s` : `${Math.round(value)} s`;
}

export function duration(value) {
  if (value < 90) return `${Math.max(Math.round(value), 0)} s`;
  if (value < 5400) return `${Math.round(value / 60)} min`;
  return value < 172800 ? `${Math.round(value / 3600)} h` : `${Math.round(value / 86400)} days`;
}

export function clock(at, now) {
  if (!at) return "–";
  const time = new Date(1000 * at);
  const sameDay = !now || Math.abs(now - at) < 86400;
  return sameDay ? time.toLocaleTimeString("en-GB") : time.toLocaleString("en-GB", { day: "numeric", month: "short", hour: "2-digit", minute: "2-digit" });
}

export const name = (word) => word.replaceAll("_", " ");
