// Which classes are predicted as which, of all clients or of the one picked.

const MOST_ROWS = 60; // of the table; the worst classes come first

function showClasses(doc) {
  const body = bodyOf("classes");
  if (!doc.confusion) return body.replaceChildren(sentence(doc.absent.classes));
  const part = el("div", {});
  let own = false;
  const all = el("button", { type: "button", id: "classes-all", onclick: () => pick(false) }, "all clients");
  const one = doc.confusion.entries && doc.run.clients > 1 ? el("button", { type: "button", id: "classes-one", onclick: () => pick(true) }) : null;
  const pick = (wanted) => {
    own = wanted;
    show();
    drawNow();
  };
  const show = () => {
    const client = shownClient(doc);
    if (one) one.textContent = `only ${calledClient(doc, client)} (picked below)`;
    all.setAttribute("aria-pressed", String(!own));
    if (one) one.setAttribute("aria-pressed", String(own));
    const counts = classCounts(doc, own ? client : null);
    part.replaceChildren(classTable(doc, counts), el("p", { class: "note" }, ""), counts.matrix ? matrixChart(doc, counts, own ? calledClient(doc, client) : "all clients") : "");
  };
  body.replaceChildren(...(one ? [el("div", { class: "controls" }, all, one)] : []), part);
  on("client", () => {
    show();
    drawNow();
  });
  show();
}

/** {samples, predicted, right: one number per class; matrix} of all clients (null) or of one. */
function classCounts({ confusion }, client) {
  const { classes, all, entries, samples, predicted, right } = confusion, C = classes.length;
  if (client === null) return { samples, predicted, right, matrix: all };
  const counts = { samples: new Float64Array(C), predicted: new Float64Array(C), right: new Float64Array(C), matrix: new Float64Array(C * C) };
  for (let i = 0; i < entries.length; i += 4) {
    const [who, is, as, many] = entries.subarray(i, i + 4);
    if (who !== client) continue;
    counts.samples[is] += many;
    counts.predicted[as] += many;
    if (is === as) counts.right[is] += many;
    counts.matrix[is * C + as] += many;
  }
  return counts;
}

function classTable({ confusion: { classes } }, { samples, predicted, right }) {
  const ratio = (a, b) => (b ? a / b : NaN);
  const rows = classes.map((name, c) => ({ name, n: samples[c], recall: ratio(right[c], samples[c]), precision: ratio(right[c], predicted[c]),
    f1: ratio(2 * right[c], samples[c] + predicted[c]) })).filter((row) => row.n || Number.isFinite(row.f1));
  rows.sort((a, b) => (Number.isFinite(a.recall) ? a.recall : 2) - (Number.isFinite(b.recall) ? b.recall : 2));
  const listed = rows.slice(0, MOST_ROWS).map(({ name, n, recall, precision, f1 }) => [name, grouped(n), percent(recall), percent(precision), percent(f1)]);
  const rest = rows.length - listed.length;
  return el("div", {}, table(["class, worst recall first", "test samples", "recall", "precision", "F1"], listed, "numbers"),
    rest > 0 ? el("p", { class: "note" }, `and ${many(rest, "class", "classes")} with a higher recall`) : null);
}

/** Rows: classes; columns: what they are predicted as; shade: the share of the row. */
function matrixChart({ confusion: { classes } }, { samples, matrix }, whose) {
  const C = classes.length;
  const share = (r, c) => (samples[r] ? matrix[r * C + c] / samples[r] : NaN);
  const part = figure(`Classes (rows) by what they are predicted as (columns), test samples of ${whose}`, "strip");
  part.host.style.setProperty("height", `${21 + Math.max(60, Math.min(620, 22 * C))}px`);
  gridChart(part, {
    label: "Confusion matrix: share of each class that is predicted as each class",
    rows: C, columns: C, left: 104, right: 8,
    colour: (r, c) => heat(share(r, c)),
    absent: (r) => !samples[r],
    text: (r, c) => (matrix[r * C + c] ? grouped(matrix[r * C + c]) : ""),
    rowNames: C <= 60 ? classes.map((name, r) => ({ from: r, to: r + 1, text: shortened(name) })) : [],
    ticks: (width) => classTicks(classes, width),
    tell: (r, c) => (r === null ? "The diagonal is right; the darker (in the dark theme: the lighter), the larger the share of the class in the row."
      : `${classes[r]} predicted as ${classes[c]}: ${grouped(matrix[r * C + c])} of ${grouped(samples[r])} (${percent(share(r, c))})`),
  });
  return part.node;
}
