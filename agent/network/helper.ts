import type {
  Attachment,
  Detachment,
  ObserveResponse,
} from '../../gen/virtprivsep/privhelper/v1/network_pb.js';
import type { PodRef } from '../api/pod-ref.js';

/** The helper's network calls. Both throw a HelperError. */
export interface NetworkHelper {
  observeNetwork(pod: PodRef): Promise<ObserveResponse>;
  /** True if anything was changed. */
  applyNetwork(request: {
    readonly pod: PodRef;
    readonly attachments: Attachment[];
    readonly detachments: Detachment[];
    /** The guest is connected by passt. */
    readonly passt: boolean;
  }): Promise<boolean>;
}
