// Where two texts differ, word by word.

const MOST = 2000; // words; the table has the square of it

// For each text, a list of [words, whether the other text has them in this place].
export function diff(left, right) {
  const a = left.split(/(?<=\s)/).slice(0, MOST);
  const b = right.split(/(?<=\s)/).slice(0, MOST);
  const same = (i, j) => a[i].trim() === b[j].trim();
  const table = Array.from({ length: a.length + 1 }, () => new Uint16Array(b.length + 1));
  for (let i = a.length - 1; i >= 0; i -= 1) {
    for (let j = b.length - 1; j >= 0; j -= 1) {
      table[i][j] = same(i, j)
        ? table[i + 1][j + 1] + 1
        : Math.max(table[i + 1][j], table[i][j + 1]);
    }
  }
  const parts = [[], []];
  const put = (side, word, shared) => {
    const last = parts[side].at(-1);
    if (last && last[1] === shared) last[0] += word;
    else parts[side].push([word, shared]);
  };
  let [i, j] = [0, 0];
  while (i < a.length || j < b.length) {
    if (i < a.length && j < b.length && same(i, j)) {
      put(0, a[i++], true);
      put(1, b[j++], true);
    } else if (j >= b.length || (i < a.length && table[i + 1][j] >= table[i][j + 1])) {
      put(0, a[i++], false);
    } else {
      put(1, b[j++], false);
    }
  }
  return parts;
}
