/** A reader for libvirt's XML documents: elements, attributes and text, nothing else. */

export interface XmlElement {
  readonly name: string;
  readonly attributes: ReadonlyMap<string, string>;
  readonly children: readonly XmlElement[];
  /** Text directly inside the element, joined. */
  readonly text: string;
}

export class XmlError extends Error {
  override readonly name = 'XmlError';
}

const maxDepth = 64;
const token = /<!--[\s\S]*?-->|<\?[\s\S]*?\?>|<\/\s*[^\s>]+\s*>|<[^!?/](?:"[^"]*"|'[^']*'|[^>"'])*>|[^<]+/y;
const tagPattern = /^<([\w.:-]+)((?:\s+[\w.:-]+\s*=\s*(?:"[^"]*"|'[^']*'))*)\s*(\/?)>$/;
const attributePattern = /([\w.:-]+)\s*=\s*(?:"([^"]*)"|'([^']*)')/g;
const entities: Readonly<Record<string, string>> = { lt: '<', gt: '>', amp: '&', quot: '"', apos: "'" };

interface Open {
  readonly name: string;
  readonly attributes: ReadonlyMap<string, string>;
  readonly children: XmlElement[];
  text: string;
}

/** Throws XmlError for a document longer than `maxLength` characters or that is not well-formed. */
export function parseXml(document: string, maxLength: number): XmlElement {
  if (document.length > maxLength)
    throw new XmlError(`XML of ${document.length} characters exceeds ${maxLength}`);
  const root: Open = { name: '', attributes: new Map(), children: [], text: '' };
  const open: Open[] = [root];
  token.lastIndex = 0;
  for (let at = 0; at < document.length; at = token.lastIndex) {
    token.lastIndex = at;
    const match = token.exec(document);
    if (match === null) throw new XmlError(`XML is not well-formed at character ${at}`);
    accept(match[0], open);
  }
  const [document_] = root.children;
  if (open.length !== 1 || root.children.length !== 1 || document_ === undefined) {
    throw new XmlError('XML has not exactly one complete root element');
  }
  return document_;
}

function accept(text: string, open: Open[]): void {
  const parent = open.at(-1);
  if (parent === undefined) throw new XmlError('XML closes more elements than it opens');
  if (text.startsWith('<!--') || text.startsWith('<?')) return;
  if (text.startsWith('</')) {
    const name = text.slice(2, -1).trim();
    if (parent.name !== name || open.length === 1)
      throw new XmlError(`XML closes ${name} inside ${parent.name}`);
    open.pop();
    return;
  }
  if (!text.startsWith('<')) {
    parent.text += decodeEntities(text);
    return;
  }
  const tag = tagPattern.exec(text);
  if (tag === null) throw new XmlError(`XML tag is not well-formed in ${parent.name || 'the document'}`);
  if (open.length > maxDepth) throw new XmlError(`XML is nested deeper than ${maxDepth} elements`);
  const element: Open = {
    name: tag[1] ?? '',
    attributes: new Map(
      [...(tag[2] ?? '').matchAll(attributePattern)].map(([, name = '', double, single]) => [
        name,
        decodeEntities(double ?? single ?? ''),
      ]),
    ),
    children: [],
    text: '',
  };
  parent.children.push(element);
  if (tag[3] === '') open.push(element);
}

function decodeEntities(text: string): string {
  return text.replace(/&(#x[\da-fA-F]{1,6}|#\d{1,7}|\w{1,8});/g, (whole, name: string) => {
    if (!name.startsWith('#')) return entities[name] ?? whole;
    const code = name.startsWith('#x') ? Number.parseInt(name.slice(2), 16) : Number(name.slice(1));
    return code <= 0x10ffff ? String.fromCodePoint(code) : whole;
  });
}

export function child(element: XmlElement | undefined, name: string): XmlElement | undefined {
  return element?.children.find((candidate) => candidate.name === name);
}

export function children(element: XmlElement | undefined, name: string): readonly XmlElement[] {
  return element?.children.filter((candidate) => candidate.name === name) ?? [];
}
