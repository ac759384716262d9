/** `privctl policy show` and `privctl policy check FILE`. */
import { InspectService, PolicyOrigin } from '../../../gen/virtprivsep/privhelper/v1/inspect_pb.js';
import { policyFileProblems, readPolicyFile } from '../../policy/file.js';
import { createPolicy, type DescribedSetting, describePolicy, type Origin } from '../../policy/policy.js';
import { CommandError, exitCodes, table } from '../output.js';
import type { Session } from '../session.js';

const origins: Readonly<Record<PolicyOrigin, Origin>> = {
  [PolicyOrigin.UNSPECIFIED]: 'default',
  [PolicyOrigin.DEFAULT]: 'default',
  [PolicyOrigin.FILE]: 'file',
  [PolicyOrigin.FLAG]: 'flag',
};

export async function policy(session: Session): Promise<void> {
  const [verb, file] = session.args;
  if (verb === 'check' && file !== undefined) return check(session, file);
  if (verb === 'show' && file === undefined) return show(session);
  throw new CommandError(exitCodes.usage, 'policy show, or policy check FILE');
}

function check(session: Session, file: string): void {
  const problems = policyFileProblems(file);
  if (session.json) session.value({ file, usable: problems.length === 0, problems });
  else if (problems.length === 0) session.lines([`${file}: the helper would use this policy.`]);
  else session.lines(problems.map((problem) => `${file}: ${problem.replace(`${file}: `, '')}`));
  if (problems.length > 0) throw new CommandError(exitCodes.failed, '');
}

/** The running helper's policy; with `--policy`, or without a helper, what a helper would start with. */
async function show(session: Session): Promise<void> {
  const { policyFile } = session.options;
  const { source, values } = policyFile === undefined ? await running(session) : ofFile(policyFile);
  if (session.json) return session.value({ source, values });
  const rows = values.map(({ path, value, origin, bound }) => [path, value, origin, bound]);
  session.lines([
    `Policy of ${source}.`,
    '',
    ...table([{ title: 'VALUE' }, { title: 'IS' }, { title: 'FROM' }, { title: 'MAY BE' }], rows),
  ]);
}

async function running(session: Session): Promise<{ source: string; values: DescribedSetting[] }> {
  let client: Awaited<ReturnType<typeof session.client<typeof InspectService>>>;
  try {
    client = await session.client(InspectService);
  } catch (error) {
    if (!(error instanceof CommandError) || error.exitCode !== exitCodes.failed) throw error;
    const source = 'a helper without policy file and flags; none is running here';
    return { source, values: describePolicy(createPolicy(), {}, {}) };
  }
  const helper = await client.getHelper({});
  const values = helper.policy.map(({ path, value, bound, origin }) => ({
    path,
    value,
    bound,
    origin: origins[origin],
  }));
  return { source: `the running helper, process ${helper.pid}`, values };
}

/** What a policy file says. Throws a CommandError when the helper would not use it. */
export function readOverrides(path: string): ReturnType<typeof readPolicyFile> {
  try {
    return readPolicyFile(path);
  } catch (error) {
    throw new CommandError(exitCodes.failed, (error as Error).message);
  }
}

function ofFile(path: string): { source: string; values: DescribedSetting[] } {
  const overrides = readOverrides(path);
  const values = describePolicy(createPolicy(overrides), overrides, {});
  return { source: `a helper that is started with ${path}`, values };
}
