import { collectDefaultMetrics, Counter, Gauge, Histogram, Registry } from 'prom-client';

/** What the service counts and times. Each call costs less than a microsecond. */
export interface Metrics {
  /** Requests answered, in seconds; `route` is the pattern, never the path. */
  requests: Timer<'method' | 'route' | 'status'>;
  /** Status reports by Delivery-Outcome. */
  reports: Count<'outcome'>;
  /** Events of types that nothing is done with. */
  ignoredEvents: Count;
  /** Reports in each flush of the ingest queue that was committed. */
  batchReports: { observe(reports: number): void };
  /** From loading to the commit of each flush, in seconds. */
  batchDurations: { observe(seconds: number): void };
  /** Shows at each scrape what `read` returns then; nothing when it rejects. */
  watch(name: GaugeName, read: () => number | Promise<number>): void;
  /** All of it, in the text format of Prometheus. */
  render(): Promise<{ contentType: string; text: string }>;
}

interface Count<Label extends string = never> {
  inc(...labels: [Label] extends [never] ? [] : [Record<Label, string>]): void;
}

interface Timer<Label extends string> {
  observe(labels: Record<Label, string>, seconds: number): void;
}

export type GaugeName = keyof typeof GAUGES;

const GAUGES = {
  ingest_queue_length: 'Reports that wait for a flush',
  waiting_readers: 'Readers that wait for something in an inbox',
  open_streams: 'Streams of sessions that are open',
  parked_reports: 'Reports that could not be delivered yet',
  dead_letters: 'Reports that never will be delivered',
} as const;

const PREFIX = 'subagent_inbox_';

/** Metrics in a registry of their own; `ofProcess` adds those of Node (one registry a process). */
export function createMetrics({ ofProcess }: { ofProcess: boolean }): Metrics {
  const registry = new Registry();
  const registers = [registry];
  if (ofProcess) collectDefaultMetrics({ register: registry });

  return {
    requests: new Histogram({
      name: `${PREFIX}http_request_duration_seconds`,
      help: 'From the request line to the answer, long polls included',
      labelNames: ['method', 'route', 'status'],
      buckets: [0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 30, 60],
      registers,
    }),
    reports: new Counter({
      name: `${PREFIX}reports_total`,
      help: 'Status reports by Delivery-Outcome',
      labelNames: ['outcome'],
      registers,
    }),
    ignoredEvents: new Counter({
      name: `${PREFIX}events_ignored_total`,
      help: 'Events of types that nothing is done with',
      registers,
    }),
    batchReports: new Histogram({
      name: `${PREFIX}batch_reports`,
      help: 'Reports in each flush that was committed',
      buckets: [1, 2, 4, 8, 16, 32, 64, 128],
      registers,
    }),
    batchDurations: new Histogram({
      name: `${PREFIX}batch_duration_seconds`,
      help: 'From loading to the commit of each flush',
      buckets: [0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5],
      registers,
    }),
    watch: (name, read) => {
      const gauge = new Gauge({
        name: `${PREFIX}${name}`,
        help: GAUGES[name],
        registers,
        collect: async () => {
          try {
            gauge.set(await read());
          } catch {
            // A scrape must succeed while the database is away: that is when it is looked at.
            gauge.remove();
          }
        },
      });
    },
    render: async () => ({ contentType: registry.contentType, text: await registry.metrics() }),
  };
}
