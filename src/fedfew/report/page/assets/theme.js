// Colours. Heat maps and models differ in lightness first, so they can be read in grey and by the colour-blind.

const DARK = window.matchMedia("(prefers-color-scheme: dark)");
let printing = false;
const isDark = () => DARK.matches && !printing;

const HEAT = {
  light: ["#f3f7fb", "#cfe1f2", "#94c4df", "#4a98c9", "#1764ab", "#08306b"],
  dark: ["#18222d", "#1d3f5e", "#22669a", "#4a98c9", "#94c4df", "#eaf4fb"],
};
const MODELS = ["#440154", "#46327e", "#365c8d", "#277f8e", "#1fa187", "#4ac16d", "#a0da39", "#fde725"]; // viridis
const MISSING = { light: "#d9d4cb", dark: "#3d3a35" };

const paper = () => (isDark() ? "#161d25" : "#ffffff"); // --card and --soft of page.css, for canvases, which are drawn before a printer asks
const pencil = () => (isDark() ? "#9aa7b4" : "#59636e");

const rgb = (hex) => [1, 3, 5].map((at) => parseInt(hex.slice(at, at + 2), 16));
const css = ([r, g, b]) => `rgb(${r},${g},${b})`;
const mix = (a, b, t) => a.map((value, i) => Math.round(value + t * (b[i] - value)));

function between(stops, t) {
  const at = Math.max(0, Math.min(1, t)) * (stops.length - 1);
  const low = Math.min(stops.length - 2, Math.floor(at));
  return mix(rgb(stops[low]), rgb(stops[low + 1]), at - low);
}

const heat = (t) => (Number.isFinite(t) ? between(isDark() ? HEAT.dark : HEAT.light, t) : rgb(isDark() ? MISSING.dark : MISSING.light));

function modelColour(k, models) {
  if (!Number.isFinite(k)) return heat(NaN);
  const low = isDark() ? 0.16 : 0.03; // the darkest would vanish on a dark page
  return between(MODELS, models === 1 ? 0.4 : low + (0.96 - low) * (k / (models - 1)));
}

const lightness = ([r, g, b]) => (0.2126 * r + 0.7152 * g + 0.0722 * b) / 255;
const inkOn = (colour) => (lightness(colour) > 0.5 ? "#10151b" : "#ffffff");

/** A small square in a model's colour with its number in it. */
function swatch(k, models) {
  const colour = modelColour(k, models);
  const box = el("span", { class: "swatch" }, Number.isFinite(k) ? String(k) : "?");
  box.style.setProperty("background", css(colour));
  box.style.setProperty("color", inkOn(colour));
  return box;
}
