// Writes deploy/kubevirt-cr/patch.yaml from the rendered base: what makes virt-operator install our pod in
// place of its own. With --check, fails when the file is not what it should be.
import { spawnSync } from 'node:child_process';
import { readFileSync, writeFileSync } from 'node:fs';
import { parseAllDocuments } from 'yaml';

const file = 'deploy/kubevirt-cr/patch.yaml';
const { stdout, status } = spawnSync('kubectl', ['kustomize', 'deploy/base/daemonset'], { encoding: 'utf8' });
if (status !== 0) process.exit(1);
const [document] = parseAllDocuments(stdout);
const operations = [
  { op: 'replace', path: '/spec/template/spec', value: document.toJS().spec.template.spec },
  // Its only use: with it, virt-operator adds a flag of migration listeners to the agent's command line.
  { op: 'remove', path: '/metadata/labels/kubevirt.io~1supports-migration-cn-types' },
];
const text = `# Made by scripts/kubevirt-cr-patch.mjs from deploy/base/daemonset. Makes virt-operator install this agent and
# helper in place of its own virt-handler:
#   kubectl --namespace kubevirt patch kubevirt kubevirt --type merge --patch-file deploy/kubevirt-cr/patch.yaml
spec:
  customizeComponents:
    patches:
      - resourceType: DaemonSet
        resourceName: virt-handler
        type: json
        patch: |-
${JSON.stringify(operations, undefined, 2).replace(/^/gm, '          ')}
`;
if (!process.argv.includes('--check')) {
  writeFileSync(file, text);
} else if (readFileSync(file, 'utf8') !== text) {
  process.stderr.write(`${file} is out of date: run node scripts/kubevirt-cr-patch.mjs\n`);
  process.exit(1);
}
