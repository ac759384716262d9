import { describe, expect, it } from 'vitest';
import { timelineSvg, timelineTable } from '../../../agent/timeline/render.js';
import { TimelineRecorder } from '../../../agent/timeline/timeline.js';

const vmi = { namespace: 'default', name: 'a<b', uid: 'u1' };

function recorder() {
  let at = 0;
  return {
    advance: (ms: number) => {
      at += ms;
    },
    timeline: new TimelineRecorder({ now: () => 1_000_000 + at, monotonic: () => at }),
  };
}

describe('timeline', () => {
  it('notes each step once, relative to the first sight of the VMI', () => {
    const { timeline, advance } = recorder();
    timeline.mark(vmi, 'seen', 'agent');
    advance(12.5);
    timeline.mark(vmi, 'network set up', 'helper');
    advance(5);
    timeline.mark(vmi, 'network set up', 'helper');
    expect(timeline.get('u1')?.steps).toEqual([
      { step: 'seen', who: 'agent', atMs: 0 },
      { step: 'network set up', who: 'helper', atMs: 12.5 },
    ]);
  });

  it('keeps a bounded number of VMIs and steps', () => {
    const { timeline } = recorder();
    for (let i = 0; i < 2000; i++) timeline.mark({ ...vmi, uid: `u${i}` }, 'seen', 'agent');
    for (let i = 0; i < 500; i++) timeline.mark({ ...vmi, uid: 'u1999' }, `step ${i}`, 'agent');
    expect(timeline.all()).toHaveLength(1024);
    expect(timeline.get('u0')).toBeUndefined();
    expect(timeline.get('u1999')?.steps).toHaveLength(64);
  });

  it('ignores a VMI without UID', () => {
    const { timeline } = recorder();
    timeline.mark({ ...vmi, uid: '' }, 'seen', 'agent');
    expect(timeline.all()).toEqual([]);
  });

  it('renders a table and a picture with escaped names', () => {
    const { timeline, advance } = recorder();
    timeline.mark(vmi, 'seen', 'agent');
    advance(40);
    timeline.mark(vmi, 'sync sent', 'launcher');
    const found = timeline.get('u1');
    if (found === undefined) throw new Error('no timeline');
    expect(timelineTable(found)).toBe(
      [
        'since takeover  step took  who       step',
        '        0.0 ms    +0.0 ms  agent     seen',
        '       40.0 ms   +40.0 ms  launcher  sync sent',
      ].join('\n'),
    );
    const svg = timelineSvg(found);
    expect(svg).toContain('a&#60;b');
    expect(svg).not.toContain('a<b');
  });
});
