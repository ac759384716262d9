import { guarded } from '../domains/domain-json.js';
import { Fields } from '../json/fields.js';
import { parseJson } from '../json/lossless.js';
import type { GuestAgentInfo } from '../reconcile/ports.js';

const maxBytes = 4 * 1024 * 1024;
const maxCommands = 1024;

/** What the reconcile loop reads of GetGuestInfo's answer; empty text is an agent that said nothing. */
export function parseGuestAgentInfo(text: string): GuestAgentInfo {
  return guarded('GuestInfo', () => {
    const info = Fields.of(text === '' ? undefined : parseJson(text, maxBytes), 'GuestInfo');
    return {
      guestAgentVersion: info.string('guestAgentVersion'),
      supportedCommands: info.list('supportedCommands', maxCommands, (command) => ({
        name: command.string('name'),
        enabled: command.boolean('enabled'),
      })),
    };
  });
}
