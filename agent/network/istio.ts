import type { Vmi } from '../api/vmi.js';

/** The pod gets an istio sidecar (the annotation decides, not the label). */
export function istioInjected(vmi: Vmi): boolean {
  return vmi.metadata.annotations?.['sidecar.istio.io/inject']?.toLowerCase() === 'true';
}
