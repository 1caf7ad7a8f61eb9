// Heat maps, on a canvas: a cell for each row and column.

/**
 * spec: {label, rows, columns, colour(row, column) → [r, g, b], tell(row, column) → words (null, null: nothing is pointed at),
 * absent(row, column)?, text(row, column)?, dot(row, column)?, left: width for names at the left, rowNames?: [{from, to, text, colour?}],
 * columnNames?: [{from, to, text, colour}], ticks?(width) → [{at, text}], right?, rowTicks?: names at the right,
 * pick(row, column)?, lines?: rows above which a line is drawn, runs(row, column)?: words for the beginning of a run of equal ones}
 */
function gridChart({ host, readout }, spec) {
  const canvas = el("canvas", { "aria-hidden": "true" });
  const markColumn = el("div", { class: "mark-column", hidden: true });
  const markRow = el("div", { class: "mark-row", hidden: true });
  host.replaceChildren(canvas, markColumn, markRow);
  const left = spec.left ?? 0, right = spec.right ?? 2, below = 2 + (spec.ticks ? 17 : 0) + (spec.columnNames ? 24 : 0);
  const box = () => ({ width: host.clientWidth - left - right, height: host.clientHeight - below });

  function cells(pen, { width, height }) {
    const small = document.createElement("canvas");
    [small.width, small.height] = [spec.columns, spec.rows];
    const inner = small.getContext("2d");
    const image = inner.createImageData(spec.columns, spec.rows);
    for (let r = 0, i = 0; r < spec.rows; r++) {
      for (let c = 0; c < spec.columns; c++, i += 4) {
        const [red, green, blue] = spec.colour(r, c);
        image.data[i] = red;
        image.data[i + 1] = green;
        image.data[i + 2] = blue;
        image.data[i + 3] = 255;
      }
    }
    inner.putImageData(image, 0, 0);
    const scale = window.devicePixelRatio || 1;
    pen.imageSmoothingEnabled = spec.columns > width * scale || spec.rows > height * scale; // fewer pixels than cells: their mean
    pen.imageSmoothingQuality = "high";
    pen.drawImage(small, left, 0, width, height);
  }

  function marks(pen, { width, height }) {
    const w = width / spec.columns, h = height / spec.rows;
    for (let r = 0; r < spec.rows; r++) {
      for (let c = 0; c < spec.columns; c++) {
        const x = left + (c + 0.5) * w, y = (r + 0.5) * h;
        const ink = () => inkOn(spec.colour(r, c));
        if (spec.absent && w >= 5 && h >= 5 && spec.absent(r, c)) {
          const s = Math.min(w, h, 14) / 2 - 1;
          pen.strokeStyle = ink();
          pen.globalAlpha = 0.45;
          pen.beginPath();
          pen.moveTo(x - s, y + s);
          pen.lineTo(x + s, y - s);
          pen.stroke();
          pen.globalAlpha = 1;
        }
        if (spec.dot && spec.dot(r, c)) {
          const s = Math.max(1, Math.min(4, 0.3 * Math.min(w, h)));
          pen.fillStyle = ink();
          pen.beginPath();
          pen.arc(x, spec.text && w >= 32 ? y + Math.min(10, h / 2 - s - 1) : y, s, 0, 7);
          pen.fill();
        }
        const text = spec.text && w >= 32 && h >= 14 ? spec.text(r, c) : "";
        if (text) {
          pen.fillStyle = ink();
          pen.textAlign = "center";
          pen.fillText(text, x, y - (spec.dot && h >= 26 ? 3 : 0) + 0.5);
        }
      }
    }
    const between = (step, count, from, to, across) => {
      if (step < (across ? 14 : 6)) return;
      for (let i = 1; i < count; i++) across ? pen.fillRect(left + i * step - 0.5, from, 1, to) : pen.fillRect(left, i * step - 0.5, to, 1);
    };
    pen.fillStyle = paper();
    between(w, spec.columns, 0, height, true);
    between(h, spec.rows, 0, width, false);
    if (spec.runs && h >= 11) runs(pen, w, h);
    pen.fillStyle = paper();
    for (const row of spec.lines || []) pen.fillRect(left, row * h - 1, width, 2);
  }

  /** So that equal shades need not be compared: what a run of equal cells is, written at its beginning. */
  function runs(pen, w, h) {
    pen.textAlign = "left";
    for (let r = 0; r < spec.rows; r++) {
      for (let c = 0, end = 0; c < spec.columns; c = end) {
        const text = spec.runs(r, c);
        for (end = c + 1; end < spec.columns && spec.runs(r, end) === text; end++);
        if ((end - c) * w < pen.measureText(text).width + 5) continue;
        pen.fillStyle = inkOn(spec.colour(r, c));
        pen.fillText(text, left + c * w + 3, (r + 0.5) * h + 0.5);
      }
    }
  }

  function names(pen, { width, height }) {
    const w = width / spec.columns, h = height / spec.rows;
    const lower = height + (spec.ticks ? 17 : 0);
    for (const { from, to, text, colour } of spec.rowNames || []) {
      if (colour) {
        pen.fillStyle = css(colour);
        pen.fillRect(left - 10, from * h + 0.5, 7, (to - from) * h - 1);
      }
      if ((to - from) * h < 10) continue;
      pen.fillStyle = pencil();
      pen.textAlign = "right";
      pen.fillText(text, left - (colour ? 15 : 6), ((from + to) / 2) * h + 0.5, left - 18);
    }
    for (const { from, to, text, colour } of spec.columnNames || []) {
      pen.fillStyle = css(colour);
      pen.fillRect(left + from * w + 0.5, lower + 3, (to - from) * w - 1, 6);
      pen.fillStyle = pencil();
      pen.textAlign = "center";
      const fits = [text, text.replace(/^model /, "")].find((words) => pen.measureText(words).width < (to - from) * w - 2);
      if (fits) pen.fillText(fits, left + ((from + to) / 2) * w, lower + 17);
    }
    pen.fillStyle = pencil();
    if (spec.rowTicks && h >= 10) {
      pen.textAlign = "left";
      spec.rowTicks.forEach((text, row) => pen.fillText(text, left + width + 5, (row + 0.5) * h + 0.5));
    }
    pen.textAlign = "center";
    for (const { at, text } of spec.ticks ? spec.ticks(width) : []) {
      const half = pen.measureText(text).width / 2;
      pen.fillText(text, Math.max(left + half, Math.min(left + width - half, left + (at + 0.5) * w)), height + 10);
    }
  }

  const chart = {
    draw() {
      const width = host.clientWidth, height = host.clientHeight, scale = window.devicePixelRatio || 1;
      if (!width) return;
      [canvas.width, canvas.height] = [Math.round(width * scale), Math.round(height * scale)];
      const pen = canvas.getContext("2d");
      pen.scale(scale, scale);
      pen.font = `11px ${getComputedStyle(host).fontFamily}`;
      pen.textBaseline = "middle";
      cells(pen, box());
      marks(pen, box());
      names(pen, box());
      chart.mark();
    },
    /** Frames around a column and a row, put there by markAt. */
    markAt(column, row) {
      [chart.column, chart.row] = [column, row];
      chart.mark();
    },
    column: null,
    row: null,
    mark() {
      const { width, height } = box();
      const put = (node, at, count, size, side, span, start) => {
        node.hidden = at === null || at === undefined || at < 0;
        if (node.hidden) return;
        node.style.setProperty(side, `${start + (at * size) / count - 1}px`);
        node.style.setProperty(span, `${Math.max(3, size / count + 2)}px`);
      };
      put(markColumn, chart.column, spec.columns, width, "left", "width", left);
      put(markRow, chart.row, spec.rows, height, "top", "height", 0);
      markColumn.style.setProperty("height", `${height}px`);
      markRow.style.setProperty("left", `${left}px`);
      markRow.style.setProperty("width", `${width}px`);
    },
  };

  const limit = (value, count) => Math.max(0, Math.min(count - 1, value));
  pointing(host, {
    label: spec.label,
    kind: "heat map",
    at: (event) => {
      const frame = host.getBoundingClientRect(), { width, height } = box();
      const column = Math.floor(((event.clientX - frame.left - left) / width) * spec.columns);
      const row = Math.floor(((event.clientY - frame.top) / height) * spec.rows);
      return column < 0 || column >= spec.columns || row < 0 || row >= spec.rows ? null : [row, column];
    },
    move: (here, key) => {
      const [row, column] = here || [0, spec.columns - 1];
      if (key === "Home") return [row, 0];
      if (key === "End") return [row, spec.columns - 1];
      const step = { ArrowLeft: [0, -1], ArrowRight: [0, 1], ArrowUp: [-1, 0], ArrowDown: [1, 0] }[key];
      return here ? [limit(row + step[0], spec.rows), limit(column + step[1], spec.columns)] : [row, column];
    },
    tell: (here) => (readout.textContent = here ? spec.tell(...here) : spec.tell(null, null)),
    pick: spec.pick && ((here) => spec.pick(...here)),
  });
  drawn(host, chart.draw);
  readout.textContent = spec.tell(null, null);
  return chart;
}

/** Rounds to write below columns that are rounds. */
function roundTicks(doc, width) {
  const last = doc.rounds.length - 1;
  const wanted = ticks(doc.rounds[0], doc.rounds[last], Math.max(2, Math.floor(width / 120))).filter((v) => v > 0 && Number.isInteger(v));
  return wanted.map((round) => ({ at: nearestTo(doc.rounds, round), text: grouped(round) }));
}

const nearestTo = (list, wanted) => list.reduce((best, v, i) => (Math.abs(v - wanted) < Math.abs(list[best] - wanted) ? i : best), 0);
