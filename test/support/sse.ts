import { Agent, request } from 'node:http';

export interface SseEvent {
  event: string;
  // Tests look into it freely.
  // oxlint-disable-next-line typescript/no-explicit-any
  data: any;
}

/** An open stream of server-sent events. */
export interface EventStream {
  status: number;
  headers: NodeJS.Dict<string | string[]>;
  /** The next event of this type, or of any; those before it are passed over. */
  next(event?: string): Promise<SseEvent>;
  /** All that has come and was not taken by `next`. */
  left(): SseEvent[];
  /** Resolves with all text that came when the server has ended the stream; rejects if it was cut. */
  ended: Promise<string>;
  /** So many comment lines have come. */
  comments(): number;
  close(): void;
}

/** Opens a stream and resolves with its head. */
export function openEventStream(
  url: string,
  path: string,
  headers: Record<string, string> = {},
): Promise<EventStream> {
  return new Promise((resolve, reject) => {
    const outgoing = request(
      new URL(path, url),
      { agent: new Agent({ keepAlive: false }), headers },
      (incoming) => {
        const events: SseEvent[] = [];
        let waiting: { event: string | undefined; take: (event: SseEvent) => void } | null = null;
        let text = '';
        let rest = '';
        let comments = 0;

        function handOut(): void {
          while (waiting !== null && events.length > 0) {
            const [first] = events.splice(0, 1);
            if (first === undefined) return;
            if (waiting.event !== undefined && waiting.event !== first.event) continue;
            const { take } = waiting;
            waiting = null;
            take(first);
          }
        }

        incoming.setEncoding('utf8').on('data', (chunk: string) => {
          text += chunk;
          rest += chunk;
          const blocks = rest.split('\n\n');
          rest = blocks.pop() ?? '';
          for (const block of blocks) {
            const lines = block.split('\n');
            if (lines.some((line) => line.startsWith(':'))) comments += 1;
            const field = (name: string) =>
              lines.find((line) => line.startsWith(`${name}: `))?.slice(name.length + 2);
            const data = field('data');
            if (data !== undefined) {
              events.push({ event: field('event') ?? 'message', data: JSON.parse(data) });
            }
          }
          handOut();
        });
        const ended = new Promise<string>((end, cut) => {
          incoming.on('end', () => end(text));
          incoming.on('error', cut);
          incoming.on('aborted', () => cut(new Error('the stream was cut off')));
        });
        ended.catch(() => {});
        resolve({
          status: incoming.statusCode ?? 0,
          headers: incoming.headers,
          next: (event) =>
            new Promise((take) => {
              waiting = { event, take };
              handOut();
            }),
          left: () => events.splice(0),
          ended,
          comments: () => comments,
          close: () => outgoing.destroy(),
        });
      },
    );
    outgoing.on('error', reject);
    outgoing.end();
  });
}
