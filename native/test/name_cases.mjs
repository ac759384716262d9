// The golden cases about names of links for name_vectors_test.cc: the case, the pod interface, whether it is the
// primary one, bridge, NIC, tap (empty: not told).
import { load, say } from './golden.mjs';

for (const { name, input, expected } of load('network', 'naming')) {
  for (const network of input.networks ?? []) {
    const names = expected.perNetwork[network.name];
    // Networks of neither kind are never plumbed.
    if (names === undefined || (network.pod == null && network.multus == null)) continue;
    const primary = network.multus == null || network.multus.default === true ? 'primary' : 'secondary';
    for (const scheme of ['hashed', 'ordinal']) {
      const of = (what) => names[`${scheme}${what}`];
      say(name, of('PodInterfaceName'), primary, of('Bridge'), of('Nic'), of('Tap'));
    }
  }
}
for (const { name, input, expected } of load('network', 'link-names')) {
  say(name, input, 'primary', expected.bridge, expected.nic, '');
}
