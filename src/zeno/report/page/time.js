// Charts of the time that steps took, and of the workers that were there.

const MOST_POINTS = 150;  // of the chart of seconds: with more than pixels, it would show peaks only

// The mean seconds of each phase in bins of the steps shown: the middles of the bins, and one array for each phase.
function meanSeconds(run, [min, max]) {
  const first = run.column(min), end = run.columns ? run.column(max) + 1 : 0;
  const size = Math.max(1, Math.ceil((end - first) / MOST_POINTS));
  const starts = [];
  for (let c = first - (first % size); c < end; c += size) starts.push(c);
  const stop = (c) => Math.min(c + size, run.columns);
  const mean = (values) => starts.map((c) => {
    let sum = 0, steps = 0;
    for (let k = c; k < stop(c); k++) {
      const count = Math.min(run.bin, run.steps - k * run.bin);
      sum += (values[k] || 0) * count;
      steps += count;
    }
    return sum / steps;
  });
  return [starts.map((c) => (run.middle(c) + run.middle(stop(c) - 1)) / 2), Object.values(run.seconds).map(mean)];
}

function timeChart(run, group) {
  const data = () => {
    const [xs, means] = meanSeconds(run, group.range());
    let below = xs.map(() => 0);
    return [xs, ...means.map((values) => (below = below.map((low, i) => low + values[i])))];
  };
  const count = Object.keys(run.seconds).length;
  return new Chart("time", group, data, {
    title: "Mean seconds per step, by phase; also in the table below",
    isBinned: true,
    scales: { y: { range: (plot) => [0, 1.1 * usual(plot.data.at(-1)) || 1] } },
    axes: [{}, { values: (_, at) => at.map((v) => figure(v, 3)) }],
    series: [{}, ...Array.from({ length: count }, (_, k) => ({
      stroke: () => css(`--a${(k % 6) + 1}`),
      width: 1,
      points: { show: false },
      ...(k === 0 && { fill: () => css("--a1") }),
    }))],
    bands: Array.from({ length: Math.max(0, count - 1) }, (_, k) => ({
      series: [k + 2, k + 1],
      fill: () => css(`--a${((k + 1) % 6) + 1}`),
    })),
  });
}

// The 99th percentile: a slow first step would flatten all the others.
function usual(values) {
  const sorted = Float64Array.from(values).sort();
  return sorted.length ? sorted[Math.min(sorted.length - 1, Math.floor(0.99 * sorted.length))] : 0;
}

function aliveChart(run, group) {
  const data = () => [Array.from({ length: run.columns }, (_, c) => run.middle(c)), ...Object.values(run.alive)];
  return new Chart("alive", group, data, {
    title: "Number of workers alive, late and lost",
    scales: { y: { range: (_, low, high) => [0, Math.max(1, high ?? 1) * 1.08] } },
    axes: [{}, { incrs: [1, 2, 5, 10, 20, 50, 100, 200, 500, 1000] }],
    series: [{}, ...Object.keys(run.alive).map((_, k) => line(k, { paths: uPlot.paths.stepped({ align: 1 }), points: { show: false } }))],
  });
}
