// Arrays as pack.py of fedfew writes them: base64 of little-endian numbers; the largest code means "no value".

const TYPES = { u1: Uint8Array, u2: Uint16Array, u4: Uint32Array, f4: Float32Array };

function unpack(packed) {
  if (!packed) return null;
  const text = atob(packed.data);
  const raw = new Uint8Array(text.length);
  for (let i = 0; i < text.length; i++) raw[i] = text.charCodeAt(i);
  const codes = new TYPES[packed.type](raw.buffer);
  const values = new Float64Array(codes.length);
  const none = packed.type === "f4" ? NaN : 2 ** (8 * codes.BYTES_PER_ELEMENT) - 1;
  for (let i = 0; i < codes.length; i++) values[i] = codes[i] === none ? NaN : codes[i] * packed.scale;
  return values;
}

/** A document whose arrays are numbers again. */
function decoded(doc) {
  const all = (part) => Object.fromEntries(Object.entries(part || {}).map(([name, packed]) => [name, unpack(packed)]));
  const ready = { ...doc, clients: all(doc.clients), maps: all(doc.maps) };
  if (doc.rows) ready.rows = { ...doc.rows, of: unpack(doc.rows.of) };
  if (doc.labels) {
    const { classes, all: mean, clients, rows } = doc.labels;
    ready.labels = { classes, all: unpack(mean), clients: unpack(clients), rows: unpack(rows) };
  }
  if (doc.confusion) {
    const { classes, ...packed } = doc.confusion;
    ready.confusion = { classes, ...all(packed) };
  }
  return ready;
}
