/** A timeline as a table for people and as a picture. Pure functions. */
import type { Actor } from '../reconcile/ports.js';
import { stepDuration, type VmiTimeline } from './timeline.js';

/** Rows of `time  +delta  who  step`, times in milliseconds since takeover. */
export function timelineTable(timeline: VmiTimeline): string {
  let previous = 0;
  const rows = timeline.steps.map(({ step, who, atMs }) => {
    const row = [ms(atMs), `+${ms(atMs - previous)}`, who, step] as const;
    previous = atMs;
    return row;
  });
  const header = ['since takeover', 'step took', 'who', 'step'] as const;
  const width = (column: 0 | 1 | 2) => Math.max(header[column].length, ...rows.map((r) => r[column].length));
  const widths = [width(0), width(1), width(2)] as const;
  const line = (r: readonly [string, string, string, string]) =>
    `${r[0].padStart(widths[0])}  ${r[1].padStart(widths[1])}  ${r[2].padEnd(widths[2])}  ${r[3]}`;
  return [line(header), ...rows.map(line)].join('\n');
}

function ms(value: number): string {
  return `${value.toFixed(1)} ms`;
}

const colours: Record<Actor, string> = {
  agent: '#3566a8',
  helper: '#b3472d',
  launcher: '#3d8361',
  api: '#8a6bb1',
};

const rowHeight = 24;
const left = 300;
const plotWidth = 620;
const top = 64;

/**
 * One bar a step, from the end of the step before it to its own; colours say who. The life of the VM between
 * its start and its stop takes no room.
 */
export function timelineSvg(timeline: VmiTimeline): string {
  const { steps, vmi } = timeline;
  let drawn = 0;
  const bars = steps.map((step) => {
    const from = drawn;
    drawn += stepDuration(timeline, step) ?? 0;
    return { ...step, from, to: drawn };
  });
  const end = Math.max(1, drawn);
  const x = (at: number) => left + (at / end) * plotWidth;
  const height = top + steps.length * rowHeight + 40;
  const parts = [
    `<svg xmlns="http://www.w3.org/2000/svg" width="${left + plotWidth + 120}" height="${height}" font-family="sans-serif" font-size="12">`,
    '<rect width="100%" height="100%" fill="white"/>',
    `<text x="16" y="24" font-size="16">${escapeXml(`${vmi.namespace}/${vmi.name}`)}: ${end.toFixed(0)} ms from takeover</text>`,
    ...(Object.keys(colours) as Actor[]).map(
      (who, i) =>
        `<rect x="${16 + i * 90}" y="36" width="10" height="10" fill="${colours[who]}"/><text x="${30 + i * 90}" y="45">${who}</text>`,
    ),
  ];
  bars.forEach(({ step, who, atMs, from, to }, i) => {
    const y = top + i * rowHeight;
    parts.push(
      `<text x="${left - 8}" y="${y + 15}" text-anchor="end">${escapeXml(step)}</text>`,
      `<rect x="${x(from).toFixed(1)}" y="${y + 4}" width="${Math.max(1.5, x(to) - x(from)).toFixed(1)}" height="14" fill="${colours[who]}"/>`,
      `<text x="${(x(to) + 6).toFixed(1)}" y="${y + 15}" fill="#555">${atMs.toFixed(1)} ms</text>`,
    );
  });
  parts.push(
    `<line x1="${left}" y1="${height - 30}" x2="${left + plotWidth}" y2="${height - 30}" stroke="#999"/>`,
    ...[0, 0.25, 0.5, 0.75, 1].map(
      (f) =>
        `<text x="${left + f * plotWidth}" y="${height - 14}" text-anchor="middle" fill="#555">${(f * end).toFixed(0)} ms</text>`,
    ),
    '</svg>',
  );
  return `${parts.join('\n')}\n`;
}

function escapeXml(text: string): string {
  return text.replace(/[<>&"']/g, (c) => `&#${c.charCodeAt(0)};`);
}
