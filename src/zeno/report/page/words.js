// Numbers and lists as text, and elements that hold text only.

function make(tag, properties = {}, ...children) {
  const element = document.createElement(tag);
  for (const [name, value] of Object.entries(properties)) {
    if (name in element && !name.startsWith("aria")) element[name] = value;
    else element.setAttribute(name, value);
  }
  element.append(...children);  // strings become text nodes
  return element;
}

const byId = (id) => document.getElementById(id);

function show(id, isShown) {
  byId(id).hidden = !isShown;
}

// Shows or hides the figure around a chart; returns whether it is shown.
function showFigure(id, isShown) {
  byId(id).closest("figure").hidden = !isShown;
  return isShown;
}

// A number with so many significant digits.
function figure(value, digits = 4) {
  if (value === null || value === undefined || Number.isNaN(value)) return "-";
  if (!Number.isFinite(value)) return "not finite";
  const size = Math.abs(value);
  if (size !== 0 && (size < 1e-4 || size >= 1e6)) return scientific(value, Math.min(digits, 3));
  return String(Number(value.toPrecision(digits)));
}

const SUPERSCRIPTS = { "-": "\u207b", 0: "\u2070", 1: "\u00b9", 2: "\u00b2", 3: "\u00b3", 4: "\u2074", 5: "\u2075", 6: "\u2076", 7: "\u2077", 8: "\u2078", 9: "\u2079" };

function scientific(value, digits) {
  const [front, power] = value.toExponential(digits - 1).split("e");
  const raised = [...power.replace("+", "")].map((c) => SUPERSCRIPTS[c]).join("");
  return `${front} \u00d7 10${raised}`;
}

// Evidence as text.
function odds(evidence) {
  if (evidence >= 1e299) return "above 10\u00b2\u2079\u2079";
  if (evidence < 0.01) return "below 0.01";
  return evidence >= 1e5 ? scientific(evidence, 2) : evidence >= 1000 ? whole(evidence) : figure(evidence, 3);
}

const whole = (value) => Math.round(value).toLocaleString("en-US");

function percent(share, digits = 1) {
  return share === null || share === undefined || Number.isNaN(share) ? "-" : `${(100 * share).toFixed(digits)} %`;
}

function seconds(value) {
  if (value === null || value === undefined || Number.isNaN(value)) return "-";
  return value < 0.0995 ? `${figure(1000 * value, 3)} ms` : `${figure(value, 3)} s`;
}

// "2, 5 and 11"
function listed(items, most = 12) {
  const shown = items.slice(0, most).map(String);
  if (items.length > most) shown.push(`${items.length - most} more`);
  return shown.length < 2 ? shown.join("") : `${shown.slice(0, -1).join(", ")} and ${shown.at(-1)}`;
}

// A name cut to so many letters.
const shortened = (name, most = 20) => ([...name].length <= most ? name : `${[...name].slice(0, most - 1).join("")}\u2026`);

// Rising steps as "3, 5 to 9, 20".
function ranges(steps, most = 24) {
  const found = [];
  for (const step of steps) {
    const last = found.at(-1);
    if (last && step === last[1] + 1) last[1] = step;
    else found.push([step, step]);
  }
  const texts = found.slice(0, most).map(([a, b]) => (a === b ? `${a}` : b === a + 1 ? `${a}, ${b}` : `${a} to ${b}`));
  return texts.join(", ") + (found.length > most ? " and later" : "");
}

const counted = (count, one, more = `${one}s`) => `${whole(count)} ${count === 1 ? one : more}`;
