// How evenly scores are spread over clients.

function showFairness(doc) {
  const over = (title, name, format, options = {}) => {
    const part = figure(title, "mid");
    const [s, a] = [doc.curves.served[name], doc.curves.adapted[name]];
    lineChart(part, {
      label: title, x: doc.rounds, format, ...options,
      series: [{ values: s, look: "served" }, { values: a, look: "adapted" }],
      tell: (i) => `round ${grouped(doc.rounds[i])}: served ${options.words ? options.words(s[i]) : format(s[i])}, adapted ${options.words ? options.words(a[i]) : format(a[i])}`,
    });
    return part.node;
  };
  const points = (v, digits) => (known(v) ? plain(100 * v, digits) : "–");
  bodyOf("fairness").replaceChildren(
    el("div", { class: "pair" },
      ...(doc.curves.served.jain.some(known) ? [over("Jain's index", "jain", plain, { words: (v) => plain(v, 4) })] : []),
      over("Standard deviation over clients, points", "std", points, { floor: 0 }),
      over("Mean of the worst tenth", "worst_tenth", (v, digits) => `${points(v, digits)} %`, { words: (v) => percent(v) }),
      ...(worstScore(doc) < 0 ? [] : [lorenz(doc)])),
    legend([["served", "served"], ["adapted", "adapted"], ["soft", "all alike"]]));
}

/** Below 0 (R² may be) there are no shares to draw. */
const worstScore = (doc) => Math.min(...["served", "adapted"].map((score) => doc.scores[score].min ?? 0));

/** Which share of all correct answers the worse-off share of the clients has. */
function lorenz(doc) {
  const steps = 50;
  const shares = (values) => {
    const sorted = Float64Array.from(values).filter(Number.isFinite).sort();
    const sums = [0];
    sorted.forEach((v) => sums.push(sums[sums.length - 1] + v));
    const total = sums[sums.length - 1] || 1;
    return Array.from({ length: steps + 1 }, (_, i) => {
      const at = (i / steps) * sorted.length, low = Math.min(sorted.length - 1, Math.floor(at));
      return sorted.length ? (sums[low] + (at - low) * (sums[low + 1] - sums[low])) / total : null;
    });
  };
  const [s, a] = [shares(doc.clients.served), shares(doc.clients.adapted)];
  const x = Array.from({ length: steps + 1 }, (_, i) => (100 * i) / steps);
  const part = figure(`Share of all ${doc.run.score} that the worse-off clients have, now`, "mid");
  lineChart(part, {
    label: "Lorenz curve", x, xLabel: "% of clients, worst first", y: [0, 1], format: (v, digits) => `${plain(100 * v, digits)} %`,
    series: [{ values: x.map((v) => v / 100), look: "soft" }, { values: s, look: "served" }, { values: a, look: "adapted" }],
    tell: (i) => (i === steps ? "All alike would be the straight line." : `The worse-off ${plain(x[i])} % of clients have ${percent(s[i])} (served), ${percent(a[i])} (adapted).`),
  });
  return part.node;
}
