// α and w: the round under the slider, and all rounds at a glance.

const SPANS = [1.5, 2, 3, 5, 10, 30, 100, 1000]; // the overview's colours run from 1/span of a fair share of α to span times it

function showWeights(doc) {
  const body = bodyOf("weights");
  if (doc.absent.weights) return body.replaceChildren(sentence(doc.absent.weights));
  body.replaceChildren(slider(doc), oneRound(doc), overview(doc));
}

function slider(doc) {
  const last = doc.rounds.length - 1;
  const range = el("input", { type: "range", id: "round", min: 0, max: last, step: 1, "aria-label": "Round" });
  const label = el("output", { for: "round", id: "round-label" });
  const play = el("button", { type: "button", id: "play" });
  const stop = () => {
    clearInterval(view.playing);
    view.playing = null;
    show();
  };
  const show = () => {
    const at = position(doc);
    range.value = at;
    range.setAttribute("aria-valuetext", `round ${doc.rounds[at]}`);
    label.textContent = `round ${grouped(doc.rounds[at])} of ${grouped(doc.run.rounds)}`;
    play.textContent = view.playing ? "❚❚ Pause" : "▶ Play";
  };
  range.addEventListener("input", () => lookAt(doc, Number(range.value)));
  play.addEventListener("click", () => {
    if (view.playing) return stop();
    if (position(doc) === last) lookAt(doc, 0);
    view.playing = setInterval(() => {
      if (!range.isConnected) return stop();
      lookAt(doc, Math.min(last, position(doc) + 1));
      if (position(doc) === last) stop();
    }, Math.max(40, Math.min(200, 12000 / (last + 1))));
    show();
  });
  on("round", show);
  show();
  return el("div", { class: "controls" }, play, range, label);
}

function oneRound(doc) {
  const { alpha, w, choice } = doc.maps;
  const count = doc.rows.size.length, order = doc.rows.order, K = doc.models;
  const alphaAt = (round, place) => alpha[round * count + order[place]];
  const wAt = (round, place, k) => w[(round * count + order[place]) * K + k];
  const fair = (round) => 1 / doc.curves.present[round];
  const values = () => order.map((_, place) => alphaAt(position(doc), place) / fair(position(doc)));
  const about = (place) => {
    const at = position(doc);
    const split = Array.from({ length: K }, (_, k) => `${plain(wAt(at, place, k), 2)}`).join(", ");
    const a = alphaAt(at, place);
    const here = `round ${grouped(doc.rounds[at])}, ${rowName(doc, order[place])}: `;
    return here + (Number.isFinite(a) ? `α ${plain(a)} (${plain(a / fair(at), 2)} × a fair share), w ${split}` : "did not take part");
  };
  const rest = () => {
    const at = position(doc);
    const cv = doc.curves.alpha_cv[at], largest = doc.curves.largest[at];
    return `Round ${grouped(doc.rounds[at])}: variation of α ${plain(cv)}, largest w of a client ${plain(largest)} in the mean.`;
  };
  const pick = (place) => pickClient(clientOf(doc, order[place]), true);
  const part = figure("α (bars, times a fair share) and w (below) in the round under the slider", "alpha");
  const reference = { value: 1, words: "1 ×" };
  const bars = barChart(part, {
    label: "α of every client in the round under the slider", values: values(), left: 64, reference, format: (v) => (v ? `${plain(v, 2)} ×` : "0"),
    tell: (place) => (place === null ? rest() : about(place)), pick,
  });
  const map = el("div", { class: "plot", id: "w-map" });
  map.style.setProperty("height", `${41 + 2 + Math.max(90, Math.min(320, 38 * K))}px`);
  const spans = doc.models > 1 ? spansByModel(doc) : [{ model: 0, from: 0, to: count }];
  const grid = gridChart({ host: map, readout: part.readout }, {
    label: "w of every client for every model in the round under the slider. Arrow keys move, Enter opens a client.",
    rows: K, columns: count, left: 64, right: MARGIN.right,
    colour: (k, place) => heat(wAt(position(doc), place, k)),
    absent: (k, place) => !Number.isFinite(wAt(position(doc), place, k)),
    text: (k, place) => (Number.isFinite(wAt(position(doc), place, k)) ? wAt(position(doc), place, k).toFixed(2) : ""),
    dot: (k, place) => choice && count <= 130 && choice[position(doc) * count + order[place]] === k,
    rowNames: Array.from({ length: K }, (_, k) => ({ from: k, to: k + 1, text: `model ${k}` })),
    columnNames: spans.map(({ model, from, to }) => ({ from, to, text: `model ${plain(model)}`, colour: modelColour(model, K) })),
    ticks: (width) => (doc.rows.binned || width / count < 18 ? [] : order.map((row, at) => ({ at, text: shortened(clientTick(doc, row), Math.max(3, Math.floor(width / count / 6.5))) }))),
    tell: (k, place) => (k === null ? rest() : about(place)),
    pick: (k, place) => pick(place),
  });
  on("round", () => {
    bars.values = values();
    bars.draw();
    grid.draw();
    part.readout.textContent = rest();
  });
  on("client", () => grid.markAt(order.indexOf(rowOf(doc, shownClient(doc))), null));
  part.node.append(map, el("div", { class: "keys" }, scaleBar("w", [[0, "0"], [0.5, "0.5"], [1, "1"]]),
    choice && count <= 130 ? el("span", {}, "● the model that the client uses") : null,
    el("span", {}, "1 ×: a fair share of α, the same for all"), el("span", {}, doc.models > 1 ? "Columns: clients, by the model they use now" : "Columns: clients")));
  return part.node;
}

function overview(doc) {
  const { alpha, w } = doc.maps;
  const count = doc.rows.size.length, order = doc.rows.order, K = doc.models;
  const spans = spansByModel(doc);
  const charts = [];
  const rest = "Rows are clients in the order above, columns rounds. The frame is the round under the slider; a click moves it.";
  const readout = el("p", { class: "readout", "aria-live": "polite" }, rest);
  const panel = (title, colour, tell) => {
    const part = figure(title, "panel");
    part.readout.remove();
    charts.push(gridChart({ host: part.host, readout }, {
      label: `${title}, clients by rounds. Arrow keys move, Enter moves the slider.`,
      rows: count, columns: doc.rounds.length, left: 12, colour,
      absent: (r, c) => !Number.isFinite(alpha[c * count + order[r]]),
      rowNames: K > 1 ? spans.map(({ model, from, to }) => ({ from, to, text: "", colour: modelColour(model, K) })) : [],
      ticks: (width) => roundTicks(doc, width),
      tell: (r, c) => (r === null ? rest : `${title}, round ${grouped(doc.rounds[c])}, ${rowName(doc, order[r])}: ${tell(r, c)}`),
      pick: (r, c) => lookAt(doc, c),
    }));
    return part.node;
  };
  const times = (r, c) => alpha[c * count + order[r]] * doc.curves.present[c];
  const far = quantile(alpha.map((a, i) => Math.abs(Math.log(Math.max(1e-9, a * doc.curves.present[Math.floor(i / count)])))), 0.98);
  const span = SPANS.find((s) => Math.log(s) >= far) || SPANS[SPANS.length - 1];
  const panels = [panel("α", (r, c) => heat(Number.isFinite(times(r, c)) ? 0.5 + Math.log(Math.max(1e-9, times(r, c))) / (2 * Math.log(span)) : NaN),
    (r, c) => `α ${plain(alpha[c * count + order[r]])}`)];
  for (let k = 0; k < K; k++) {
    const at = (r, c) => w[(c * count + order[r]) * K + k];
    panels.push(panel(`w for model ${k}`, (r, c) => heat(at(r, c)), (r, c) => `w ${plain(at(r, c), 2)}`));
  }
  const marks = () => charts.forEach((chart) => chart.markAt(position(doc), null));
  on("round", marks);
  charts.forEach((chart) => (chart.column = position(doc)));
  return el("div", { class: "stack" }, el("h3", {}, "All rounds at a glance"),
    readout,
    el("div", { class: "panels" }, panels),
    el("div", { class: "keys" }, scaleBar("w", [[0, "0"], [0.5, "0.5"], [1, "1"]]),
      scaleBar("α, times a fair share", [[0, `1/${span}`], [0.5, "1"], [1, String(span)]]), el("span", {}, missingKey(), " did not take part")));
}

function scaleBar(words, marks) {
  const width = 120;
  const steps = Array.from({ length: 30 }, (_, i) => svg("rect", { x: (i * width) / 30, y: 0, width: width / 30 + 0.5, height: 10, fill: css(heat(i / 29)) }));
  const names = marks.map(([t, text]) => svg("text", { class: "tick", x: t * width, y: 23, "text-anchor": t === 0 ? "start" : t === 1 ? "end" : "middle" }, text));
  return el("span", { class: "scale" }, `${words} `, svg("svg", { width, height: 26, role: "img", "aria-label": `${words}: light is low in the light theme` }, steps, names));
}

function missingKey() {
  const box = el("span", { class: "swatch" }, "⁄");
  box.style.setProperty("background", css(heat(NaN)));
  return box;
}
