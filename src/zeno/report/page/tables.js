// Tables that can be sorted by their headings.

class Table {
  // `columns`: title, value(row) to sort by, cell(row) to show (text or an element), and isText.
  constructor(id, columns, { head = 0, onPick = null, picked = () => false, style = () => "", sort = null } = {}) {
    this.element = byId(id);
    Object.assign(this, { columns, head, onPick, picked, style });
    this.sort = sort ?? { column: 0, isDown: false };
    this.rows = [];
    this.buttons = columns.map((column, k) => {
      const arrow = make("span", { className: "arrow", "aria-hidden": "true" });
      const button = make("button", { type: "button" }, column.title, arrow);
      button.addEventListener("click", () => this.sortBy(k));
      return button;
    });
    this.heads = this.buttons.map((button, k) => make("th", { scope: "col", className: columns[k].isText ? "text" : "" }, button));
    this.body = make("tbody");
    this.element.replaceChildren(make("thead", {}, make("tr", {}, ...this.heads)), this.body);
  }

  sortBy(column) {
    const isDown = this.sort.column === column ? !this.sort.isDown : Boolean(this.columns[column].isDown);
    this.sort = { column, isDown };
    this.fill(this.rows);
  }

  fill(rows) {
    this.rows = rows;
    const { column, isDown } = this.sort;
    const value = this.columns[column]?.value ?? (() => 0);  // in the given order until a heading is clicked
    const sorted = rows.map((row, i) => [value(row), i, row]).sort((a, b) => compare(a[0], b[0], isDown) || a[1] - b[1]);
    this.heads.forEach((head, k) => {
      const isSorted = k === column;
      if (isSorted) head.setAttribute("aria-sort", isDown ? "descending" : "ascending");
      else head.removeAttribute("aria-sort");
      head.querySelector(".arrow").textContent = isSorted ? (isDown ? "\u2193" : "\u2191") : "";
    });
    const focused = this.body.contains(document.activeElement) ? document.activeElement.dataset.key : null;
    this.body.replaceChildren(...sorted.map(([, , row]) => this.line(row)));
    if (focused !== null) [...this.body.querySelectorAll("button")].find((b) => b.dataset.key === focused)?.focus();
  }

  line(row) {
    const cells = this.columns.map((column, k) => {
      let content = column.cell(row);
      if (k === this.head && this.onPick) {
        const button = make("button", { type: "button", "aria-pressed": String(this.picked(row)) }, content);
        button.dataset.key = String(column.value(row));
        button.addEventListener("click", () => this.onPick(row));
        content = button;
      }
      const properties = { className: column.isText ? "text" : "" };
      return k === this.head ? make("th", { scope: "row", ...properties }, content) : make("td", properties, content);
    });
    return make("tr", { className: `${this.style(row)}${this.picked(row) ? " picked" : ""}` }, ...cells);
  }
}

// Missing values come last in either order.
function compare(a, b, isDown) {
  const isNone = (value) => value === null || value === undefined || Number.isNaN(value);
  if (isNone(a) || isNone(b)) return Number(isNone(a)) - Number(isNone(b));
  const order = typeof a === "string" ? a.localeCompare(b, "en") : a - b;
  return isDown ? -order : order;
}

const VERDICTS = { suspect: ["\u25b6", "suspect"], mended: ["\u21ba", "mended"], "": ["", "-"] };

function verdictCell(row) {
  const [sign, word] = VERDICTS[row.verdict] ?? ["", row.verdict];
  const text = make("span", { className: row.verdict in VERDICTS && row.verdict ? `${row.verdict}-word` : "" });
  if (sign) text.append(make("span", { "aria-hidden": "true" }, `${sign} `));
  text.append(row.reason ? `${word}: ${row.reason}` : word);
  return text;
}

function evidenceCell(row, threshold) {
  const fill = make("i");
  const share = Math.max(0, Math.min(1, Math.log(Math.max(row.evidence, 1e-300)) / Math.log(threshold)));
  fill.style.width = `${100 * share}%`;
  return make("span", {}, make("span", { className: "bar", "aria-hidden": "true" }, fill), make("span", { className: "number" }, odds(row.evidence)));
}

function ledgerTable(options) {
  const numbers = (name) => (row) => row[name];
  return new Table("ledger", [
    { title: "Worker", value: numbers("worker"), cell: (row) => (row.machine ? `${row.name} on ${row.machine}` : row.name) },
    { title: "Verdict", value: (row) => row.verdict, cell: verdictCell, isText: true, isDown: true },
    { title: "Since step", value: numbers("since"), cell: (row) => (row.since === null ? "-" : whole(row.since)) },
    { title: "Evidence", value: numbers("evidence"), cell: (row) => evidenceCell(row, options.threshold()), isDown: true },
    { title: "Dropped", value: numbers("dropped"), cell: (row) => percent(row.dropped), isDown: true },
    { title: "Recently", value: numbers("recently"), cell: (row) => percent(row.recently), isDown: true },
    { title: "Mean rank", value: numbers("rank"), cell: (row) => figure(row.rank, 3), isDown: true },
    { title: "Longest streak", value: numbers("streak"), cell: (row) => whole(row.streak), isDown: true },
    { title: "Errors", value: (row) => total(row.errors), cell: (row) => errorsText(row.errors), isText: true, isDown: true },
    { title: "Late", value: numbers("late"), cell: (row) => whole(row.late), isDown: true },
    { title: "Not asked", value: numbers("quarantined"), cell: (row) => whole(row.quarantined), isDown: true },
    { title: "Made faulty", value: numbers("faulty"), cell: (row) => (row.faulty === null ? "-" : row.faulty === 0 ? "no" : row.faulty === 1 ? "yes" : percent(row.faulty, 0)), isDown: true },
  ], { ...options, style: (row) => row.verdict });
}

const total = (counts) => Object.values(counts).reduce((sum, n) => sum + n, 0);
const errorsText = (errors) => Object.entries(errors).map(([kind, n]) => `${kind} ${whole(n)}`).join(", ") || "-";

function lossText(run) {
  const { evaluations, train_loss: loss } = run.summary;
  return !evaluations ? "-" : loss === null ? "not finite" : loss >= 0.001 && loss < 1e5 ? loss.toFixed(3) : figure(loss);
}

function compareTable(options) {
  const of = (name) => (run) => run.summary[name];
  return new Table("compare-table", [
    { title: "Run", value: (run) => run.name, cell: (run) => run.name, isText: true },
    { title: "Rule", value: (run) => run.settings.rule ?? "", cell: (run) => run.settings.rule ?? "-", isText: true },
    { title: "Steps", value: (run) => run.steps, cell: (run) => whole(run.steps), isDown: true },
    { title: "Accuracy", value: of("accuracy"), cell: (run) => percent(run.summary.accuracy), isDown: true },
    { title: "Loss", value: of("train_loss"), cell: lossText },
    { title: "Faulty kept", value: of("faulty_kept"), cell: (run) => percent(run.summary.faulty_kept) },
    { title: "Faulty of kept", value: of("faulty_among_kept"), cell: (run) => percent(run.summary.faulty_among_kept) },
    { title: "Server's share", value: (run) => run.summary.own || null, cell: (run) => (run.summary.own ? percent(run.summary.own) : "-"), isDown: true },
    { title: "Per step", value: of("seconds_per_step"), cell: (run) => seconds(run.summary.seconds_per_step) },
    { title: "Suspects", value: (run) => run.suspects.length, cell: (run) => (run.suspects.length ? `${run.suspects.length}: ${listed(run.suspects, 6)}` : "none"), isText: true, isDown: true },
  ], { ...options, sort: { column: -1, isDown: false } });
}

function phaseTable() {
  return new Table("phases", [
    { title: "Phase", value: (phase) => phase.name, cell: (phase) => make("span", {}, swatch(phase.k, true), ` ${phase.name}`), isText: true },
    { title: "Per step", value: (phase) => phase.mean, cell: (phase) => seconds(phase.mean), isDown: true },
    { title: "Share", value: (phase) => phase.share, cell: (phase) => percent(phase.share), isDown: true },
    { title: "Longest", value: (phase) => phase.peak, cell: (phase) => seconds(phase.peak), isDown: true },
    { title: "Total", value: (phase) => phase.sum, cell: (phase) => seconds(phase.sum), isDown: true },
  ], { sort: { column: 1, isDown: true } });
}

function phasesOf(run) {
  const found = Object.entries(run.seconds).map(([name, values], k) => {
    let sum = 0;
    values.forEach((value, c) => { sum += (value || 0) * Math.min(run.bin, run.steps - c * run.bin); });
    return { name, k, sum, mean: sum / Math.max(1, run.steps), peak: run.peaks.phases[name] };
  });
  const all = found.reduce((sum, phase) => sum + phase.sum, 0);
  return found.map((phase) => ({ ...phase, share: all ? phase.sum / all : null }));
}
