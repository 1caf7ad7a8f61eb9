// A bar for each of many values.

/**
 * spec: {label, values, tell(i), look(i)?, reference?: {value, words}, names?: what stands below bars where it fits, xLabel, format,
 * top?, left?, right?, pick(i)?, marks?: a second value beside each}
 */
function barChart({ host, readout }, spec) {
  const { values, tell, format } = spec;
  const left = spec.left ?? MARGIN.left, rightMargin = spec.right ?? MARGIN.right;
  let place = null;
  const chart = { values, draw: () => {}, tell: (i) => tell(i) };
  const at = (event) => {
    const box = host.getBoundingClientRect();
    const i = Math.floor(((event.clientX - box.left - left) / (box.width - left - rightMargin)) * values.length);
    return i >= 0 && i < values.length ? i : null;
  };
  chart.draw = () => {
    const width = host.clientWidth, height = host.clientHeight;
    if (!width) return;
    const bottom = height - (spec.names ? MARGIN.bottom : 6), right = width - rightMargin;
    const shown = [...chart.values].filter(known);
    const top = spec.top ?? Math.max(...shown, spec.reference ? 1.25 * spec.reference.value : 0, 1e-12);
    const step = (right - left) / values.length, gap = step > 6 ? Math.min(6, 0.18 * step) : 0;
    const py = (v) => bottom - (v / top) * (bottom - MARGIN.top);
    const root = svg("svg", { width, height, viewBox: `0 0 ${width} ${height}`, "aria-hidden": "true", focusable: "false" });
    for (const v of new Set([0, format(top) === format(0) ? 0 : top])) root.append(svg("text", { class: "tick", x: left - 6, y: py(v) + 4, "text-anchor": "end" }, format(v)));
    const bars = chart.values.map ? Array.from(chart.values) : chart.values;
    bars.forEach((v, i) => {
      if (!known(v)) return;
      root.append(svg("rect", { class: `bar ${spec.look ? spec.look(i) : ""}`, x: left + i * step + gap / 2, width: Math.max(0.5, step - gap),
        y: py(v), height: Math.max(v > 0 ? 0.75 : 0, bottom - py(v)) }));
      if (spec.marks && known(spec.marks[i])) root.append(svg("line", { class: "beside", x1: left + i * step, x2: left + (i + 1) * step,
        y1: py(spec.marks[i]), y2: py(spec.marks[i]) }));
    });
    if (spec.reference) root.append(svg("line", { class: "reference", x1: left, x2: right, y1: py(spec.reference.value), y2: py(spec.reference.value) }),
      svg("text", { class: "tick", x: left - 6, y: Math.min(bottom - 12, Math.max(MARGIN.top + 16, py(spec.reference.value) + 4)), "text-anchor": "end" }, spec.reference.words));
    root.append(svg("line", { class: "axis", x1: left, x2: right, y1: bottom, y2: bottom }));
    if (spec.names) {
      const room = Math.max(...spec.names.map((name) => name.length)) * 6.2 + 8;
      const every = Math.max(1, Math.ceil(room / step));
      spec.names.forEach((name, i) => {
        if (i % every === 0) root.append(svg("text", { class: "tick", x: left + (i + 0.5) * step, y: bottom + 16, "text-anchor": "middle" }, name));
      });
      root.append(svg("text", { class: "tick name", x: right, y: height - 3, "text-anchor": "end" }, spec.xLabel || ""));
    }
    host.replaceChildren(root);
    place = { step };
  };
  pointing(host, {
    label: spec.label,
    kind: "bar chart",
    at,
    move: (here, key) => along(here, key, values.length),
    tell: (i) => (readout.textContent = chart.tell(i)),
    pick: spec.pick,
  });
  drawn(host, chart.draw);
  readout.textContent = chart.tell(null);
  return chart;
}
