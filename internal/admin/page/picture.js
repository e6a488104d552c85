// The way of an event as a picture: four stations and what lies between them. It
// lies on a wide screen and stands on a narrow one.

const icons = {
  service: 'M3 7h18v10H3zM7 11l2 2-2 2M12 15h4',
  postgresql: 'M4 6c0-1.7 3.6-3 8-3s8 1.3 8 3v12c0 1.7-3.6 3-8 3s-8-1.3-8-3zM4 6c0 1.7 3.6 3 8 3s8-1.3 8-3M4 12c0 1.7 3.6 3 8 3s8-1.3 8-3',
  relay: 'M2 7h7l6 10h7M17 12.5l5 4.5-5 4.5',
  jetstream: 'M3 5h18v4H3zM3 10.5h18v4H3zM3 16h18v4H3z',
};

const ways = ['commit', 'WAL, in commit order', 'publish, in order'];

function cut(text, most) {
  return text.length > most ? text.slice(0, most - 1) + '…' : text;
}

function station(part, x, y, w, h) {
  const lines = part.lines || [];
  const most = Math.floor((w - 24) / 6.6);
  return svg('g', { class: 'node', 'data-level': part.level, transform: `translate(${x} ${y})` },
    svg('title', null, `${part.title}: ${part.word}`),
    svg('rect', { width: w, height: h, rx: 12 }),
    svg('rect', { class: 'band', x: 1, y: 1, width: w - 2, height: 42, rx: 11 }),
    svg('path', { class: 'icon', d: icons[part.name], transform: 'translate(13 11) scale(.86)' }),
    svg('text', { class: 'title', x: 44, y: 27 }, cut(part.title, Math.floor((w - 50) / 8))),
    svg('path', { class: 'mark', d: marks[part.level], transform: 'translate(11 50) scale(.72)' }),
    svg('text', { class: 'word', x: 33, y: 63 }, cut(part.word, Math.floor((w - 40) / 7.2))),
    lines.slice(0, 3).map((line, i) => svg('text', { class: 'line', x: 14, y: 85 + 18 * i }, cut(line, most))));
}

// broken says whether nothing passes between two stations.
function broken(from, to) {
  return [from, to].find((p) => p.level === 'bad' || (p.level === 'unknown' && p.name !== 'service'));
}

function pipe(from, to, d, moves) {
  const why = broken(from, to);
  return svg('g', { 'data-level': why ? why.level : null },
    svg('path', { class: why ? 'pipe cut' : 'pipe', d }),
    moves && !why && svg('path', { class: 'flow', d }));
}

function picture(parts, moves, width) {
  const upright = width < 720;
  const label = parts.map((p) => `${p.title}: ${p.word}`).join('; ');
  const out = [], caption = (x, y, text, anchor) => svg('text', { class: 'caption', x, y, 'text-anchor': anchor || 'middle' }, text);
  if (upright) {
    const w = Math.max(260, Math.min(width, 420)), h = 112, gap = 46;
    parts.forEach((p, i) => {
      const y = i * (h + gap) + 1;
      if (i < 3) {
        out.push(pipe(p, parts[i + 1], `M${w / 2} ${y + h + 6}V${y + h + gap - 6}`, moves));
        out.push(caption(w / 2 + 14, y + h + gap / 2 + 4, ways[i], 'start'));
      }
      out.push(station(p, 1, y, w - 2, h));
    });
    return svg('svg', { viewBox: `0 0 ${w} ${4 * h + 3 * gap + 2}`, role: 'img', 'aria-label': label }, out);
  }
  const w = 180, h = 124, gap = (1040 - 4 * w) / 3, top = 4;
  parts.forEach((p, i) => {
    const x = i * (w + gap) + 1;
    if (i < 3) {
      out.push(pipe(p, parts[i + 1], `M${x + w + 7} ${top + h / 2}H${x + w + gap - 9}`, moves));
      ways[i].split(', ').forEach((line, n, all) => out.push(caption(x + w + gap / 2 - 1, top + h / 2 - 14 - 15 * (all.length - 1 - n), line)));
    }
    out.push(station(p, x, top, w, h));
  });
  const x1 = 2 * (w + gap) + w / 2, x2 = w + gap + w / 2, y = top + h;
  out.push(svg('path', { class: 'back', d: `M${x1} ${y + 4}v16a8 8 0 0 1-8 8H${x2 + 8}a8 8 0 0 1-8-8V${y + 6}` }));
  out.push(svg('path', { class: 'back head', d: `M${x2 - 5} ${y + 11}l5-7 5 7` }));
  out.push(caption((x1 + x2) / 2, y + 44, 'confirms only what is stored'));
  return svg('svg', { viewBox: `0 0 1042 ${y + 50}`, role: 'img', 'aria-label': label }, out);
}
