/** The host's NUMA cells as a launcher is told them, from libvirt's capabilities document. */
import { child, children, parseXml, type XmlElement } from './xml.js';

export interface HostTopology {
  readonly cells: readonly NumaCell[];
}

export interface NumaCell {
  readonly id: number;
  readonly memory?: { readonly amount: bigint; readonly unit: string };
  readonly pages: readonly { readonly count: bigint; readonly unit: string; readonly size: number }[];
  readonly distances: readonly { readonly id: number; readonly value: bigint }[];
  readonly cpus: readonly { readonly id: number; readonly siblings: readonly number[] }[];
}

const maxCapabilitiesLength = 8 * 1024 * 1024;

/** Every element may be missing; a host without topology has no cells. Throws XmlError for what is no XML. */
export function parseHostTopology(capabilitiesXml: string): HostTopology {
  const capabilities = parseXml(capabilitiesXml, maxCapabilitiesLength);
  const cells = child(child(child(capabilities, 'host'), 'topology'), 'cells');
  return { cells: children(cells, 'cell').map(numaCell) };
}

function numaCell(cell: XmlElement): NumaCell {
  const memory = child(cell, 'memory');
  return {
    id: uint32(cell.attributes.get('id')),
    ...(memory === undefined ? {} : { memory: { amount: uint64(memory.text), unit: unitOf(memory) } }),
    pages: children(cell, 'pages').map((pages) => ({
      count: uint64(pages.text),
      unit: unitOf(pages),
      size: uint32(pages.attributes.get('size')),
    })),
    distances: children(child(cell, 'distances'), 'sibling').map(({ attributes }) => ({
      id: uint32(attributes.get('id')),
      value: uint64(attributes.get('value')),
    })),
    cpus: children(child(cell, 'cpus'), 'cpu').map(({ attributes }) => ({
      id: uint32(attributes.get('id')),
      siblings: siblingsOf(attributes.get('siblings')),
    })),
  };
}

function unitOf(element: XmlElement): string {
  return element.attributes.get('unit') ?? '';
}

/** Plain numbers only: ranges are not expanded, launchers expect the list as KubeVirt makes it. */
function siblingsOf(list: string | undefined): number[] {
  return (list ?? '').split(',').filter(isUint32).map(Number);
}

function isUint32(text: string): boolean {
  return /^\d{1,10}$/.test(text) && Number(text) <= 0xffffffff;
}

function uint32(text: string | undefined): number {
  return text !== undefined && isUint32(text) ? Number(text) : 0;
}

function uint64(text: string | undefined): bigint {
  const digits = text?.trim() ?? '';
  return /^\d{1,20}$/.test(digits) ? BigInt.asUintN(64, BigInt(digits)) : 0n;
}
