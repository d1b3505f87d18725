"use strict";
// Unpacks runs, see pack.py. Cells are [columns, workers]; a column is a bin of `bin` steps, usually one.

const KEPT = 1, DROPPED = 2, ERROR = 4, NOT_ASKED = 8, FAULTY = 16, LATE = 32;
const WHOLE = 127;  // the largest weight of a column
const KINDS = { i1: Int8Array, u1: Uint8Array, u2: Uint16Array, u4: Uint32Array, f4: Float32Array };

async function unpack({ kind, data }) {
  const text = atob(data);
  const zipped = new Uint8Array(text.length);
  for (let i = 0; i < text.length; i++) zipped[i] = text.charCodeAt(i);
  const stream = new Blob([zipped]).stream().pipeThrough(new DecompressionStream("gzip"));
  const raw = await new Response(stream).arrayBuffer();
  return kind === "f3" ? fromPlanes(new Uint8Array(raw)) : new KINDS[kind](raw);
}

// Floats of 24 bits, the high bytes of all of them first.
function fromPlanes(planes) {
  const count = planes.length / 3;
  const bits = new Uint32Array(count);
  for (let i = 0; i < count; i++) {
    bits[i] = ((planes[i] << 24) | (planes[count + i] << 16) | (planes[2 * count + i] << 8)) >>> 0;
  }
  return new Float32Array(bits.buffer);
}

// Unpacks the arrays of an object, also nested ones.
async function unpackAll(packed) {
  const unpacked = await Promise.all(Object.entries(packed).map(async ([name, value]) => {
    return [name, typeof value.kind === "string" ? await unpack(value) : await unpackAll(value)];
  }));
  return Object.fromEntries(unpacked);
}

// `earlier` up to `length`, then `later`; NaN or 0 where earlier is shorter.
function joined(earlier, later, length) {
  const all = new later.constructor(length + later.length);
  if (all instanceof Float32Array) all.fill(NaN, 0, length);
  if (earlier) all.set(earlier.subarray(0, length));
  all.set(later, length);
  return all;
}

class Run {
  constructor() {
    this.name = "";
    this.generation = 0;
    this.over = true;
    this.steps = 0;
    this.columns = 0;
    // Without a prototype: a name in the records may be __proto__ or constructor.
    this.cells = Object.create(null);
    this.lines = Object.create(null);
    this.seconds = Object.create(null);
    this.alive = Object.create(null);
    this.errors = { step: [], worker: [], text: [] };
    this.skipped = { step: [], text: [] };
    this.noted = { step: [], text: [] };
    this.texts = [];
  }

  // Adds a chunk: its columns replace existing ones from its first step on.
  async take(chunk) {
    const { rank, state, score, weight, ranked, largest, lr, own, accuracy, loss, seconds, alive, errors, skipped, noted } = chunk;
    const cells = { rank, state, score, weight, ...(chunk.share && { share: chunk.share }), ...(chunk.staleness && { staleness: chunk.staleness }) };
    const found = await unpackAll({ cells, lines: { ranked, largest, lr, own, accuracy, loss }, seconds, alive, errors, skipped, noted });
    const { name, settings, planned, notes, workers, bin, steps, num_lines: numLines, summary, peaks, ledger, staleness_of_workers: staleness = null, generation = 0 } = chunk;
    Object.assign(this, { staleness, name, settings, planned, notes, workers, bin, steps, numLines, summary, peaks, ledger, generation });
    const start = chunk.from / bin;
    for (const [name, array] of Object.entries(found.cells)) {
      this.cells[name] = joined(this.cells[name], array, start * workers);
    }
    for (const part of ["lines", "seconds", "alive"]) this.put(this[part], found[part], start);
    this.columns = this.lines.lr.length;
    this.putTexts(found, chunk.texts, chunk.from);
    this.code = this.coded();
    this.ranks = this.lines.ranked.some((n) => n > 0);
    this.hasServer = this.lines.own.some((share) => share > 0);
    this.typical = undefined;
  }

  put(lines, found, start) {
    const length = start + (Object.values(found)[0]?.length ?? 0);
    for (const [name, array] of Object.entries(found)) lines[name] = joined(lines[name], array, start);
    for (const [name, array] of Object.entries(lines)) {
      if (array.length < length) lines[name] = joined(array, new Float32Array(length - array.length).fill(NaN), array.length);
    }
  }

  putTexts(found, texts, from) {
    const base = this.texts.length;
    this.texts = this.texts.concat(texts);
    for (const part of ["errors", "skipped", "noted"]) {
      const old = this[part];
      const keep = old.step.findIndex((step) => step >= from);
      const length = keep < 0 ? old.step.length : keep;
      for (const name of Object.keys(old)) {
        const array = Array.from(found[part][name], (value) => (name === "text" ? value + base : value));
        old[name] = old[name].slice(0, length).concat(array);
      }
    }
  }

  // 0 to 249: how light a cell is, by its rank and by its share of the update; 250 and above: special states.
  // `under` is the last such shade of a worker, for steps at which it was not asked; NO_SHADE before the first.
  coded() {
    const { rank, state, share, weight } = this.cells;
    const { ranked, largest } = this.lines;
    this.isWeighted = false;  // whether some worker was kept with a clearly smaller weight than another
    const code = new Uint8Array(state.length), under = new Uint8Array(state.length);
    const last = new Uint8Array(this.workers).fill(NO_SHADE);
    for (let c = 0, i = 0; c < this.columns; c++) {
      const lowest = Math.max(1, ranked[c] - 1);
      for (let w = 0; w < this.workers; w++, i++) {
        const s = state[i];
        const place = rank[i] ? 1 - (rank[i] - 1) / lowest : ranked[c] ? 0 : 0.5;  // a missing score counts as the last place
        const isPlaced = ranked[c] > 0 && !(s & (ERROR | NOT_ASKED));
        if (s & (KEPT | DROPPED) || rank[i] || isPlaced) {
          const kept = share ? 1 - share[i] / 255 : s & DROPPED ? 0 : 1;
          const isWeighed = s & (KEPT | DROPPED) && largest[c] > 0;  // not NaN
          const carried = isWeighed ? Math.max(0, weight[i] / WHOLE) : kept;
          if (carried < kept - 0.1) this.isWeighted = true;
          code[i] = shade(place, carried);
          if (s & ERROR && this.bin === 1) code[i] = CODE_ERROR;
        } else code[i] = s & ERROR ? CODE_ERROR : s & NOT_ASKED ? CODE_NOT_ASKED : CODE_NONE;
        under[i] = last[w];
        if (code[i] < CODE_NOT_ASKED) last[w] = code[i];
      }
    }
    this.under = under;
    this.ownCode = Uint8Array.from(this.lines.own, (share) => (Number.isNaN(share) ? CODE_NONE : 249 * Math.max(0, Math.min(1, share))));
    return code;
  }

  column(step) {
    return Math.max(0, Math.min(this.columns - 1, Math.floor(step / this.bin)));
  }

  // The middle of a column on the axis of steps.
  middle(column) {
    return column * this.bin + (Math.min(this.bin, this.steps - column * this.bin) - 1) / 2;
  }

  // Whether to show a line of evaluations: there are values, or the run has not been evaluated yet and will be.
  expects(name) {
    return this.lines[name].some((value) => !Number.isNaN(value)) || (!this.summary.evaluations && "eval_every" in this.settings);
  }

  // "name: digits, zeno(trim=4), 8 of 20 workers faulty (label_flip)", as far as the settings say.
  get headline() {
    const about = [this.settings.task, this.settings.rule, this.faults].filter(Boolean).join(", ");
    return about.includes(this.name) ? about : [this.name, about].filter(Boolean).join(": ");
  }

  get faults() {
    const { faulty, fault } = this.settings;
    if (faulty === undefined) return "";
    return Number(faulty) ? `${faulty} of ${this.workers} workers faulty (${fault})` : "no faults";
  }

  // The names of the suspects.
  get suspects() {
    return this.ledger.rows.filter((row) => row.verdict === "suspect").map((row) => row.name);
  }

  nameOf(worker) {
    return this.ledger.rows[worker].name;
  }

  // For each column, over the workers: the median and the best score.
  scoresOfAll() {
    if (this.typical) return this.typical;
    const median = new Float32Array(this.columns).fill(NaN);
    const best = new Float32Array(this.columns).fill(NaN);
    for (let c = 0; c < this.columns; c++) {
      const row = this.cells.score.slice(c * this.workers, (c + 1) * this.workers).sort();  // NaN comes last
      const count = row.findIndex(Number.isNaN);
      const n = count < 0 ? row.length : count;
      if (!n) continue;
      median[c] = (row[(n - 1) >> 1] + row[n >> 1]) / 2;
      best[c] = row[n - 1];
    }
    this.typical = { median, best };
    return this.typical;
  }

  // [text, steps] for the errors in a worker's replies, the most frequent first.
  errorsOf(worker) {
    const { step, worker: by, text } = this.errors;
    return grouped(step.filter((_, i) => by[i] === worker), text.filter((_, i) => by[i] === worker), this.texts);
  }

  errorAt(worker, step) {
    const { step: steps, worker: by, text } = this.errors;
    const i = steps.findIndex((s, k) => s === step && by[k] === worker);
    return i < 0 ? null : this.texts[text[i]];
  }
}

// `place`: 1 for the highest score, 0 for the lowest. `carried`: 1 for the largest weight at that step, 0 for dropped.
const shade = (place, carried) => carried * (150 + 99 * place) + (1 - carried) * (110 * place);

const CODE_ERROR = 250, CODE_NOT_ASKED = 251, CODE_NONE = 252, NO_SHADE = 255;

function grouped(steps, indices, texts) {
  const found = new Map();
  indices.forEach((index, i) => {
    const text = texts[index];
    if (!found.has(text)) found.set(text, []);
    found.get(text).push(steps[i]);
  });
  return [...found].sort((a, b) => b[1].length - a[1].length);
}
