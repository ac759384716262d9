import { describe, expect, it } from 'vitest';
import { Registry } from '../../../agent/metrics/registry.js';
import { timelineSvg, timelineTable } from '../../../agent/timeline/render.js';
import { TimelineReport } from '../../../agent/timeline/report.js';
import { goneStep, runningStep, TimelineRecorder } from '../../../agent/timeline/timeline.js';
import { testLogger } from '../kube/test-logger.js';

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

  it('drops VMIs that are gone before those that live', () => {
    const { timeline } = recorder();
    for (let i = 0; i < 1024; i++) timeline.mark({ ...vmi, uid: `u${i}` }, 'seen', 'agent');
    timeline.mark({ ...vmi, uid: 'u700' }, goneStep, 'agent');
    timeline.mark({ ...vmi, uid: 'new' }, 'seen', 'agent');
    expect(timeline.get('u700')).toBeUndefined();
    expect(timeline.get('u0')).toBeDefined();
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

it('each VMI gets one line when it runs and one when it is gone, and its steps are measured', () => {
  const registry = new Registry();
  const lines: string[] = [];
  const report = new TimelineReport(registry, testLogger(lines));
  let at = 0;
  const timeline = new TimelineRecorder({ now: () => 0, monotonic: () => at }, (of, step) =>
    report.step(of, step),
  );
  const mark = (step: string, milliseconds: number) => {
    at += milliseconds;
    timeline.mark(vmi, step, 'agent');
    timeline.mark(vmi, step, 'agent');
  };
  mark('seen', 0);
  mark('connected', 30);
  mark(runningStep, 170);
  mark('shutdown signalled', 3_600_000);
  mark(goneStep, 2_000);

  const whole = lines.map((line) => JSON.parse(line)).filter(({ msg }) => msg.includes('since takeover'));
  expect(whole.map(({ msg }) => msg)).toEqual([
    'Running written after 200.0 ms: seen 0.0, connected 30.0, Running written 200.0 ms since takeover',
    'cleaned after 3602200.0 ms: seen 0.0, connected 30.0, Running written 200.0, ' +
      'shutdown signalled 3600200.0, cleaned 3602200.0 ms since takeover',
  ]);
  expect(whole[0]).toMatchObject({ kind: 'VirtualMachineInstance', uid: 'u1', level: 'info' });
  const text = registry.text();
  expect(text).toContain('virt_privsep_vmi_start_duration_seconds_sum 0.2\n');
  expect(text).toContain('virt_privsep_vmi_step_duration_seconds_sum{step="connected",who="agent"} 0.03\n');
  expect(text).toContain('virt_privsep_vmi_step_duration_seconds_sum{step="cleaned",who="agent"} 2\n');
  // The life of the VM is no step.
  expect(text).not.toContain('shutdown signalled');
});
