/*
 * Readers that wait for an inbox: woken in memory by what this replica commits, and through the
 * database by what the others do. A wake is only a hint to look; the look decides.
 */

export interface InboxWaiters {
  /**
   * Resolves true when the inbox may hold something, false when the time is up, the reader has left
   * or the service drains. Register before looking, so that nothing falls between look and wait.
   */
  register(tenantId: string, sessionId: string): InboxWaiter;
  /** Wakes everyone who waits for this inbox here. */
  wake(tenantId: string, sessionId: string): void;
  /** The inboxes that are waited for here, for the backstop poll. */
  waitedFor(): { tenantId: string; sessionId: string }[];
  /** How many readers wait, for the metrics. */
  count(): number;
  /** Answers all waits now and those that come; for the drain. */
  release(): void;
}

export interface InboxWaiter {
  wait(milliseconds: number, left: AbortSignal): Promise<boolean>;
  close(): void;
}
