// Numbers behind the curves: smoothing, mean and spread over seeds, axis limits and ticks.

// Centred moving average; the window shrinks towards both ends, so that first and last values stay what they are.
function smooth(values, window) {
  const half = Math.floor(window / 2);
  if (half < 1) return values;
  const sums = [0], counts = [0];
  values.forEach((value, i) => {
    sums.push(sums[i] + (isNumber(value) ? value : 0));
    counts.push(counts[i] + (isNumber(value) ? 1 : 0));
  });
  let first = values.findIndex(isNumber), last = values.length - 1;
  while (last > first && !isNumber(values[last])) last -= 1;
  return values.map((value, i) => {
    if (!isNumber(value)) return null;
    const reach = Math.min(half, i - first, last - i);
    return (sums[i + reach + 1] - sums[i - reach]) / (counts[i + reach + 1] - counts[i - reach]);
  });
}

// Mean and standard deviation (n − 1) where all seeds have a value: no seed leaves a mean unseen.
function overSeeds(seeds) {
  const mean = [], std = [];
  for (let i = 0; i < seeds[0].length; i += 1) {
    const values = seeds.map((seed) => seed[i]);
    if (!values.every(isNumber)) {
      mean.push(null);
      std.push(null);
      continue;
    }
    const middle = values.reduce((a, b) => a + b, 0) / values.length;
    const squares = values.reduce((a, b) => a + (b - middle) ** 2, 0);
    mean.push(middle);
    std.push(values.length > 1 ? Math.sqrt(squares / (values.length - 1)) : null);
  }
  return { mean, std };
}

// What is to be drawn for a metric: one entry a group that has it.
function prepare(metric, xName, window) {
  return DATA.groups.flatMap((group, place) => {
    const curve = group.curves[metric];
    if (!curve) return [];
    const seeds = curve.seeds.map((values) => smooth(values, window));
    return [{ group, place, x: curve[xName], rounds: curve.rounds, seeds, ...overSeeds(seeds) }];
  });
}

function extent(values) {
  let low = Infinity, high = -Infinity;
  for (const value of values) {
    if (!isNumber(value)) continue;
    if (value < low) low = value;
    if (value > high) high = value;
  }
  return low <= high ? [low, high] : null;
}

// Limits of the value axis; diverged groups do not stretch it while there are others.
function valueLimits(series, options) {
  const steady = series.filter((item) => !item.group.diverged);
  const values = [];
  for (const item of steady.length ? steady : series) {
    const alone = item.seeds.length === 1, broken = !item.mean.some(isNumber);
    const start = options.zoom ? Math.floor(item.mean.length / 2) : 0;
    if (options.seeds || broken) item.seeds.forEach((seed) => values.push(...seed.slice(start)));
    item.mean.forEach((mean, i) => {
      if (!isNumber(mean) || i < start) return;
      values.push(mean);
      if (options.band && !alone) values.push(mean - item.std[i], mean + item.std[i]);
    });
  }
  const found = extent(options.log ? values.filter((value) => value > 0) : values);
  if (!found) return null;
  const [low, high] = found;
  if (options.log) {
    const factor = high > low ? (high / low) ** 0.04 : 1.1;
    return [low / factor, high * factor];
  }
  const margin = 0.04 * (high - low) || Math.abs(high) * 0.1 || 1;
  return [low - margin, high + margin];
}

function ticks(low, high, wanted, whole = false) {
  const raw = Math.max((high - low) / Math.max(1, wanted), whole ? 1 : 0);
  const power = 10 ** Math.floor(Math.log10(raw));
  const factors = whole && power < 10 ? [1, 2, 5, 10] : [1, 2, 2.5, 5, 10];
  const step = power * factors.find((factor) => factor * power >= raw * 0.999);
  const found = [];
  for (let i = Math.ceil(low / step - 1e-9); i * step <= high + step * 1e-9; i += 1) found.push(i * step + 0); // + 0: no negative zero
  const decimals = Math.max(0, -Math.floor(Math.log10(step) + 1e-9) + (step / power === 2.5 ? 1 : 0));
  const large = Math.max(Math.abs(low), Math.abs(high)) >= 1e6;
  return found.map((value) => ({ value, text: large ? value.toPrecision(2) : formatTick(value, decimals) }));
}

function formatTick(value, decimals) {
  const text = decimals > 6 ? value.toPrecision(2) : value.toFixed(decimals);
  return decimals === 0 && Math.abs(value) >= 10000 ? formatCount(Math.round(value)) : text.replace(/^-(0\.?0*)$/, "$1");
}

function logTicks(low, high) {
  const decades = Math.log10(high / low);
  if (decades < 0.35) return ticks(low, high, 5);
  const factors = decades > 3 ? [1] : decades > 1.3 ? [1, 3] : [1, 2, 5];
  const found = [];
  const every = Math.ceil(decades / 8);
  for (let power = Math.floor(Math.log10(low)); power <= Math.log10(high); power += 1) {
    if (power % every) continue;
    for (const factor of factors) {
      const value = factor * 10 ** power;
      if (value >= low && value <= high) found.push({ value, text: String(Number(value.toPrecision(3))) });
    }
  }
  return found;
}

function makeScale([low, high], [start, end], log) {
  const map = log ? Math.log : (value) => value;
  const from = map(low), span = map(high) - from || 1;
  const scale = (value) => start + ((map(value) - from) / span) * (end - start);
  scale.invert = (place) => {
    const value = from + ((place - start) / (end - start)) * span;
    return log ? Math.exp(value) : value;
  };
  return scale;
}

// Place of the last value of a sorted list that is not above x; -1 if there is none.
function lastAtOrBelow(values, x) {
  let low = 0, high = values.length;
  while (low < high) {
    const middle = (low + high) >> 1;
    if (values[middle] <= x) low = middle + 1;
    else high = middle;
  }
  return low - 1;
}
