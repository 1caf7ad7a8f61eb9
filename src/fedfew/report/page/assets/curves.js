// Learning curves, and every client's score sorted.

function showCurves(doc) {
  const scores = ["served", "adapted"];
  const lists = scores.flatMap((score) => [doc.curves[score].min, doc.curves[score].max]);
  const y = extent(lists);
  const parts = scores.map((score) => {
    const c = doc.curves[score];
    const part = figure(score, "tall");
    lineChart(part, {
      label: `Learning curve, ${score} ${doc.run.score}`,
      x: doc.rounds, y, format: (v, digits) => `${plain(100 * v, digits)} %`,
      series: [{ values: c.mean, look: score, low: c.min, high: c.max }, { values: c.worst_tenth, look: `${score} tenth` }],
      tell: (i) => `round ${grouped(doc.rounds[i])}: mean ${percent(c.mean[i])}, worst tenth ${percent(c.worst_tenth[i])}, worst ${percent(c.min[i])}, best ${percent(c.max[i])}`,
    });
    part.node.append(legend([[score, "mean"], [`${score} tenth`, "worst tenth"], [`band ${score}`, "worst to best client"]]));
    return part.node;
  });
  bodyOf("curves").replaceChildren(el("div", { class: "pair" }, parts));
}

function showClients(doc) {
  const { served, adapted, choice } = doc.clients;
  const order = Array.from(served.keys()).sort((a, b) => order_of(served[a]) - order_of(served[b]) || a - b);
  const part = figure(null, "tall");
  const size = order.length > 2000 ? 1 : order.length > 400 ? 1.6 : order.length > 80 ? 3 : 4.5;
  const y = extent([served, adapted]);
  let place = null, line = null;
  const px = (rank) => place.left + ((rank + 0.5) / order.length) * (place.right - place.left);
  const words = (rank) => {
    const i = order[rank];
    return `${clientName(doc, i)}: served ${percent(served[i])}, adapted ${percent(adapted[i])}` + (doc.models > 1 ? `, model ${plain(choice[i])}` : "");
  };
  const rest = `From ${clientName(doc, order[0])} (served ${percent(served[order[0]])}) to ${calledClient(doc, order[order.length - 1])} (${percent(served[order[order.length - 1]])}).`;
  drawn(part.host, () => {
    place = axes(part.host, { x: [0, order.length], y, xLabel: "clients, worst served first", yFormat: (v, digits) => `${plain(100 * v, digits)} %`, whole: true });
    const between = order.map((i, rank) => (order.length <= 400 && Number.isFinite(served[i] + adapted[i])
      ? `M${px(rank).toFixed(1)} ${place.py(served[i]).toFixed(1)}V${place.py(adapted[i]).toFixed(1)}` : ""));
    place.root.append(svg("path", { class: "between", d: between.join("") }));
    const shapes = { adapted: [adapted, (x, v) => diamond(x, v, size * DIAMOND)], served: [served, (x, v) => circle(x, v, size)] };
    for (const [score, [values, shape]] of Object.entries(shapes)) {
      const d = order.map((i, rank) => (Number.isFinite(values[i]) ? shape(px(rank), place.py(values[i])) : "")).join("");
      place.root.append(svg("path", { class: `mark ${score} ${order.length > 400 ? "many" : ""}`, d }));
    }
    line = svg("line", { class: "cursor hidden", y1: MARGIN.top, y2: place.bottom });
    place.root.append(line);
  });
  pointing(part.host, {
    label: `Test ${doc.run.score} of every client, sorted. ${rest} Arrow keys move over clients, Enter opens one.`,
    kind: "chart",
    at: (event) => {
      const box = part.host.getBoundingClientRect();
      const rank = Math.floor(((event.clientX - box.left - place.left) / (place.right - place.left)) * order.length);
      return Math.max(0, Math.min(order.length - 1, rank));
    },
    move: (here, key) => along(here, key, order.length),
    tell: (rank) => {
      part.readout.textContent = rank === null ? rest : words(rank);
      line.classList.toggle("hidden", rank === null);
      if (rank !== null) [line.x1, line.x2].forEach((end) => (end.baseVal.value = px(rank)));
    },
    pick: (rank) => pickClient(order[rank], true),
  });
  part.readout.textContent = rest;
  part.node.append(legend([["mark served", "served"], ["mark adapted", "adapted"]]));
  bodyOf("clients").replaceChildren(part.node);
}

const order_of = (value) => (Number.isFinite(value) ? value : 2); // clients without a score come last
