// Charts of lines and of dots, in SVG.

const MARGIN = { left: 46, right: 12, top: 10, bottom: 34 }; // left: wider where names of ticks need it

function ticks(low, high, count) {
  if (low === high) return [low];
  const rough = (high - low) / Math.max(1, count);
  const unit = 10 ** Math.floor(Math.log10(rough));
  const step = [1, 2, 5, 10].map((m) => m * unit).find((s) => s >= rough * 0.999);
  const found = [];
  for (let i = Math.ceil(low / step - 1e-9); i * step <= high + 1e-9 * step; i++) found.push(i * step);
  return found;
}

/** Digits by which neighbouring ticks differ when they are written; 3 at least. */
function digitsOf(heights) {
  const decade = (v) => Math.floor(Math.log10(Math.abs(v)) + 1e-9);
  return heights.length < 2 ? 3 : Math.max(3, decade(Math.max(...heights.map(Math.abs))) - decade(heights[1] - heights[0]) + 1);
}

/** Low and high ends of all numbers, rounded outwards, never one and the same. */
function extent(lists, { low = Infinity, high = -Infinity } = {}) {
  for (const list of lists) for (const v of list) if (known(v)) [low, high] = [Math.min(low, v), Math.max(high, v)];
  if (low > high) [low, high] = [0, 1];
  if (high - low < 1e-9 * Math.max(1, Math.abs(high))) [low, high] = [low - 0.5 * (Math.abs(low) || 1), high + 0.5 * (Math.abs(high) || 1)];
  const step = ticks(low, high, 5);
  const size = step.length > 1 ? step[1] - step[0] : (high - low) / 2;
  return [Math.floor(low / size + 1e-9) * size, Math.ceil(high / size - 1e-9) * size];
}

/** Axes on an empty host; returns where numbers lie. */
function axes(host, { x, y, xLabel, yFormat, xTicks, whole }) {
  const width = host.clientWidth, height = host.clientHeight;
  const right = width - MARGIN.right, bottom = height - MARGIN.bottom;
  const heights = ticks(y[0], y[1], height < 150 ? 2 : height < 250 ? 4 : 5);
  const names = heights.map((v) => yFormat(v, digitsOf(heights)));
  const left = Math.max(MARGIN.left, 12 + 6.8 * Math.max(...names.map((name) => name.length)));
  const [first, span] = x[0] === x[1] ? [x[0] - 0.5, 1] : [x[0], x[1] - x[0]]; // a single round is in the middle
  const px = (v) => left + ((v - first) / span) * (right - left);
  const py = (v) => bottom - ((v - y[0]) / (y[1] - y[0])) * (bottom - MARGIN.top);
  const root = svg("svg", { width, height, viewBox: `0 0 ${width} ${height}`, "aria-hidden": "true", focusable: "false" });
  heights.forEach((v, i) => {
    root.append(svg("line", { class: "gridline", x1: left, x2: right, y1: py(v), y2: py(v) }),
      svg("text", { class: "tick", x: left - 6, y: py(v) + 4, "text-anchor": "end" }, names[i]));
  });
  const shown = xTicks || ticks(x[0], x[1], Math.max(2, Math.floor(width / 110))).filter((v) => !whole || Number.isInteger(v));
  for (const v of shown) root.append(svg("text", { class: "tick", x: Math.min(px(v), width - 4 * grouped(v).length), y: bottom + 16, "text-anchor": "middle" }, grouped(v)));
  root.append(svg("line", { class: "axis", x1: left, x2: right, y1: bottom, y2: bottom }),
    svg("text", { class: "tick name", x: right, y: height - 3, "text-anchor": "end" }, xLabel));
  host.replaceChildren(root);
  return { root, px, py, left, right, bottom };
}

function path(x, values, px, py) {
  let text = "", pen = "M";
  values.forEach((v, i) => {
    if (!known(v)) return (pen = "M");
    text += `${pen}${px(x[i]).toFixed(1)} ${py(v).toFixed(1)}`;
    pen = "L";
  });
  return text;
}

function area(x, low, high, px, py) {
  const at = x.map((_, i) => i).filter((i) => known(low[i]) && known(high[i]));
  if (!at.length) return "";
  const point = (i, v) => `${px(x[i]).toFixed(1)} ${py(v).toFixed(1)}`;
  return "M" + at.map((i) => point(i, high[i])).join("L") + "L" + at.reverse().map((i) => point(i, low[i])).join("L") + "Z";
}

/**
 * Lines over rounds. series: [{name, values, look, low?, high?, band?}]; look is a class of page.css, which sets colour and dashes.
 * tell(i): the words for the readout.
 */
function lineChart({ host, readout }, { label, x, xLabel = "round", series, y, format, tell, floor, ceiling, whole = true }) {
  const range = y || extent(series.flatMap((s) => [s.values, s.low || [], s.high || []]), { low: floor, high: ceiling });
  let dots = [], line = null, place = null;
  const show = (i) => {
    readout.textContent = x.length ? tell(i === null ? x.length - 1 : i) : "";
    if (!place) return;
    line.classList.toggle("hidden", i === null);
    if (i !== null) [line.x1, line.x2].forEach((end) => (end.baseVal.value = place.px(x[i])));
    series.forEach((s, n) => {
      const v = s.values[i === null ? x.length - 1 : i];
      dots[n].classList.toggle("hidden", !known(v));
      if (!known(v)) return;
      dots[n].setAttribute("cx", place.px(x[i === null ? x.length - 1 : i]));
      dots[n].setAttribute("cy", place.py(v));
    });
  };
  drawn(host, () => {
    place = axes(host, { x: [x[0], x[x.length - 1]], y: range, xLabel, yFormat: format, whole });
    for (const s of series) if (s.low) place.root.append(svg("path", { class: `band ${s.look}`, d: area(x, s.low, s.high, place.px, place.py) }));
    for (const s of series) place.root.append(svg("path", { class: `line ${s.look}`, d: path(x, s.values, place.px, place.py) }));
    line = svg("line", { class: "cursor hidden", y1: MARGIN.top, y2: place.bottom });
    dots = series.map((s) => svg("circle", { class: `dot ${s.look}`, r: 4 }));
    place.root.append(line, ...dots);
    show(null);
  });
  pointing(host, {
    label: `${label}. ${tell(x.length - 1)}. Arrow keys move along the rounds.`,
    kind: "chart",
    at: (event) => {
      const box = host.getBoundingClientRect();
      const wanted = event.clientX - box.left;
      let best = 0;
      x.forEach((v, i) => {
        if (Math.abs(place.px(v) - wanted) < Math.abs(place.px(x[best]) - wanted)) best = i;
      });
      return best;
    },
    move: (here, key) => along(here, key, x.length),
    tell: show,
  });
  readout.textContent = tell(x.length - 1);
}

/** What the lines mean: [[look, words], …]; a look "band …" is an area. */
function legend(entries) {
  const item = ([look, words]) => {
    const [kind, name] = look.startsWith("band ") ? ["band", look.slice(5)] : look.startsWith("mark ") ? ["mark", look.slice(5)] : ["line", look];
    const shape = kind === "band" ? svg("rect", { class: `band ${name}`, x: 0, y: 2, width: 26, height: 10 })
      : kind === "mark" ? mark(name, 13, 7, 4.2)
      : svg("path", { class: `line ${name}`, d: "M0 7H26" });
    return el("li", {}, svg("svg", { width: 26, height: 14, "aria-hidden": "true" }, shape), words);
  };
  return el("ul", { class: "legend" }, entries.map(item));
}

/** Served: a filled circle; adapted: an empty diamond. */
function mark(score, x, y, r) {
  return score === "served" ? svg("circle", { class: "mark served", cx: x, cy: y, r })
    : svg("path", { class: "mark adapted", d: diamond(x, y, r * DIAMOND) });
}
const DIAMOND = 1.6; // so large that it can be seen around a circle at the same place
const diamond = (x, y, r) => `M${(x - r).toFixed(1)} ${y.toFixed(1)}l${r} ${-r}l${r} ${r}l${-r} ${r}z`;
const circle = (x, y, r) => `M${(x - r).toFixed(1)} ${y.toFixed(1)}a${r} ${r} 0 1 0 ${2 * r} 0a${r} ${r} 0 1 0 ${-2 * r} 0z`;
