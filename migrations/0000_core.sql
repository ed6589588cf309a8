CREATE SEQUENCE "public"."item_seq" INCREMENT BY 1 MINVALUE 1 MAXVALUE 9223372036854775807 START WITH 1 CACHE 1;--> statement-breakpoint
CREATE TABLE "assistant_texts" (
	"tenant_id" text NOT NULL,
	"session_id" text NOT NULL,
	"text" text NOT NULL,
	"response_id" text,
	"fresh" boolean NOT NULL,
	"received_at" timestamp with time zone NOT NULL,
	CONSTRAINT "assistant_texts_tenant_id_session_id_pk" PRIMARY KEY("tenant_id","session_id")
);
--> statement-breakpoint
CREATE TABLE "closing_interrupts" (
	"tenant_id" text NOT NULL,
	"work_id" text NOT NULL,
	"session_id" text NOT NULL,
	"child_session_id" text NOT NULL,
	"closed_at" timestamp with time zone NOT NULL,
	CONSTRAINT "closing_interrupts_tenant_id_work_id_pk" PRIMARY KEY("tenant_id","work_id")
);
--> statement-breakpoint
CREATE TABLE "delegations" (
	"tenant_id" text NOT NULL,
	"delegation_id" text NOT NULL,
	"origin_session_id" text NOT NULL,
	"parent_session_id" text NOT NULL,
	"mode" text NOT NULL,
	"wakes" boolean NOT NULL,
	"task_count" integer NOT NULL,
	"goals" jsonb NOT NULL,
	"context" text,
	"toolsets" jsonb,
	"role" text,
	"model" text,
	"text_bytes" integer GENERATED ALWAYS AS (octet_length(goals::text) + coalesce(octet_length(context), 0) + coalesce(octet_length(toolsets::text), 0)) STORED NOT NULL,
	"session_key" text,
	"origin_ui_session_id" text,
	"channel" jsonb,
	"request" jsonb NOT NULL,
	"notify_failures" boolean NOT NULL,
	"created_at" timestamp with time zone NOT NULL,
	"ended_at" timestamp with time zone,
	CONSTRAINT "delegations_tenant_id_delegation_id_pk" PRIMARY KEY("tenant_id","delegation_id"),
	CONSTRAINT "delegations_mode_known" CHECK ("delegations"."mode" in ('background', 'inline'))
);
--> statement-breakpoint
CREATE TABLE "heartbeats" (
	"tenant_id" text NOT NULL,
	"child_session_id" text NOT NULL,
	"work_id" text,
	"api_calls" bigint,
	"current_tool" text,
	"last_activity_at" text,
	"progressed" boolean NOT NULL,
	"progress_at" timestamp with time zone NOT NULL,
	CONSTRAINT "heartbeats_tenant_id_child_session_id_pk" PRIMARY KEY("tenant_id","child_session_id")
);
--> statement-breakpoint
CREATE TABLE "idempotency_keys" (
	"tenant_id" text NOT NULL,
	"request_key" "bytea" NOT NULL,
	"fingerprint" text NOT NULL,
	"answer_status" smallint,
	"answer" jsonb,
	"created_at" timestamp with time zone NOT NULL,
	CONSTRAINT "idempotency_keys_tenant_id_request_key_pk" PRIMARY KEY("tenant_id","request_key")
);
--> statement-breakpoint
CREATE TABLE "items" (
	"tenant_id" text NOT NULL,
	"session_id" text NOT NULL,
	"seq" bigint NOT NULL,
	"source" text NOT NULL,
	"type" text NOT NULL,
	"delegation_id" text,
	"work_id" text,
	"child_session_id" text,
	"agent" text NOT NULL,
	"title" text NOT NULL,
	"status" text NOT NULL,
	"output" text NOT NULL,
	"recovered" boolean DEFAULT false NOT NULL,
	"follows_seq" bigint,
	"revision" integer DEFAULT 1 NOT NULL,
	"disposition" text DEFAULT 'turn' NOT NULL,
	"wakes" boolean DEFAULT true NOT NULL,
	"response_id" text,
	"created_by" text,
	"traceparent" text,
	"details" jsonb,
	"delivered_at" timestamp with time zone NOT NULL,
	"delivery_count" integer DEFAULT 0 NOT NULL,
	"leased_until" timestamp with time zone,
	"acked_at" timestamp with time zone,
	CONSTRAINT "items_tenant_id_session_id_seq_pk" PRIMARY KEY("tenant_id","session_id","seq"),
	CONSTRAINT "items_once_per_source" UNIQUE("tenant_id","source"),
	CONSTRAINT "items_of_delegation_or_work" CHECK (("items"."type" = 'sub_agent') = ("items"."delegation_id" is null)),
	CONSTRAINT "items_disposition_known" CHECK ("items"."disposition" in ('note', 'turn')),
	CONSTRAINT "items_revision_positive" CHECK ("items"."revision" >= 1)
);
--> statement-breakpoint
CREATE TABLE "late_results" (
	"tenant_id" text NOT NULL,
	"work_id" text NOT NULL,
	"digest" "bytea" NOT NULL,
	"seq" bigint NOT NULL,
	"status" text NOT NULL,
	"output" text NOT NULL,
	"response_id" text,
	"reported_at" timestamp with time zone NOT NULL,
	CONSTRAINT "late_results_tenant_id_work_id_digest_pk" PRIMARY KEY("tenant_id","work_id","digest")
);
--> statement-breakpoint
CREATE TABLE "parked_reports" (
	"tenant_id" text NOT NULL,
	"id" text NOT NULL,
	"child_session_id" text NOT NULL,
	"turn" integer NOT NULL,
	"state" text NOT NULL,
	"parent_session_id" text,
	"reason" text NOT NULL,
	"status" text NOT NULL,
	"outcome" text,
	"output" text,
	"response_id" text,
	"work_id" text,
	"result" jsonb,
	"after_running" boolean NOT NULL,
	"traceparent" text,
	"tries" integer NOT NULL,
	"first_at" timestamp with time zone NOT NULL,
	"last_at" timestamp with time zone NOT NULL,
	"dead_at" timestamp with time zone,
	CONSTRAINT "parked_reports_tenant_id_id_pk" PRIMARY KEY("tenant_id","id"),
	CONSTRAINT "parked_reports_state_known" CHECK ("parked_reports"."state" in ('parked', 'dead')),
	CONSTRAINT "parked_reports_dead_since" CHECK (("parked_reports"."state" = 'dead') = ("parked_reports"."dead_at" is not null))
);
--> statement-breakpoint
CREATE TABLE "runners" (
	"tenant_id" text NOT NULL,
	"runner_id" text NOT NULL,
	"lease_ms" bigint NOT NULL,
	"renewed_at" timestamp with time zone NOT NULL,
	"lost_at" timestamp with time zone,
	CONSTRAINT "runners_tenant_id_runner_id_pk" PRIMARY KEY("tenant_id","runner_id")
);
--> statement-breakpoint
CREATE TABLE "service_watch" (
	"tenant_id" text NOT NULL,
	"observed_at" timestamp with time zone NOT NULL,
	"uninterrupted_since" timestamp with time zone NOT NULL,
	CONSTRAINT "service_watch_tenant_id_pk" PRIMARY KEY("tenant_id")
);
--> statement-breakpoint
CREATE TABLE "sessions" (
	"tenant_id" text NOT NULL,
	"id" text NOT NULL,
	"created_at" timestamp with time zone NOT NULL,
	"described_at" timestamp with time zone,
	"deleted_at" timestamp with time zone,
	"parent_session_id" text,
	"agent_id" text,
	"agent_name" text,
	"sub_agent_name" text,
	"title" text,
	"workspace" text,
	"runner_id" text,
	"channel" jsonb,
	"max_concurrent" integer,
	"continued_as" text,
	"tip_session_id" text,
	"status" text DEFAULT 'idle' NOT NULL,
	"background_task_count" bigint DEFAULT 0 NOT NULL,
	"blocked_on" text,
	"error_code" text,
	"error_message" text,
	"response_id" text,
	"closed_at" timestamp with time zone,
	"end_reason" text,
	"inbox_opened_at" timestamp with time zone,
	"inbox_closed_at" timestamp with time zone,
	"inbox_moves" integer DEFAULT 0 NOT NULL,
	"current_work_id" text,
	"last_report" text,
	"ran_since_result" boolean DEFAULT false NOT NULL,
	"last_digest" text,
	"upstream_message_id" text,
	CONSTRAINT "sessions_tenant_id_id_pk" PRIMARY KEY("tenant_id","id"),
	CONSTRAINT "sessions_status_known" CHECK ("sessions"."status" in ('idle', 'running', 'waiting', 'failed')),
	CONSTRAINT "sessions_background_task_count_not_negative" CHECK ("sessions"."background_task_count" >= 0),
	CONSTRAINT "sessions_error_whole" CHECK (("sessions"."error_code" is null) = ("sessions"."error_message" is null)),
	CONSTRAINT "sessions_inbox_closed_after_opened" CHECK ("sessions"."inbox_closed_at" is null or "sessions"."inbox_opened_at" is not null),
	CONSTRAINT "sessions_chain_whole" CHECK (("sessions"."continued_as" is null) = ("sessions"."tip_session_id" is null) and "sessions"."continued_as" is distinct from "sessions"."id")
);
--> statement-breakpoint
CREATE TABLE "turn_responses" (
	"tenant_id" text NOT NULL,
	"child_session_id" text NOT NULL,
	"response_key" "bytea" NOT NULL,
	"work_id" text NOT NULL,
	"delivered" boolean NOT NULL,
	CONSTRAINT "turn_responses_tenant_id_child_session_id_response_key_pk" PRIMARY KEY("tenant_id","child_session_id","response_key")
);
--> statement-breakpoint
CREATE TABLE "units" (
	"tenant_id" text NOT NULL,
	"unit_id" text NOT NULL,
	"delegation_id" text NOT NULL,
	"ordinal" integer NOT NULL,
	"group_name" text,
	"task_indexes" jsonb NOT NULL,
	"status" text NOT NULL,
	"ended_at" timestamp with time zone,
	"revision" integer DEFAULT 0 NOT NULL,
	"last_item_seq" bigint,
	CONSTRAINT "units_tenant_id_unit_id_pk" PRIMARY KEY("tenant_id","unit_id"),
	CONSTRAINT "units_status_known" CHECK ("units"."status" in ('running', 'completed', 'failed', 'error', 'timeout', 'interrupted', 'stalled', 'unknown')),
	CONSTRAINT "units_ended_or_running" CHECK (("units"."ended_at" is null) = ("units"."status" = 'running'))
);
--> statement-breakpoint
CREATE TABLE "viewers" (
	"tenant_id" text NOT NULL,
	"viewer_id" text NOT NULL,
	"session_id" text NOT NULL,
	"attached_at" timestamp with time zone NOT NULL,
	"renewed_at" timestamp with time zone NOT NULL,
	"lease_ms" bigint NOT NULL,
	CONSTRAINT "viewers_tenant_id_viewer_id_pk" PRIMARY KEY("tenant_id","viewer_id")
);
--> statement-breakpoint
CREATE TABLE "wakes" (
	"tenant_id" text NOT NULL,
	"session_id" text NOT NULL,
	"pending" boolean NOT NULL,
	"last_notice" text,
	"repeat_at" timestamp with time zone,
	"repeat_delay_ms" bigint NOT NULL,
	"announcements" integer NOT NULL,
	"as_of" bigint NOT NULL,
	"told" jsonb,
	CONSTRAINT "wakes_tenant_id_session_id_pk" PRIMARY KEY("tenant_id","session_id")
);
--> statement-breakpoint
CREATE TABLE "webhook_wakes" (
	"tenant_id" text NOT NULL,
	"session_id" text NOT NULL,
	"id" text NOT NULL,
	"number" integer NOT NULL,
	"notice" text NOT NULL,
	"pending" integer NOT NULL,
	"item_id" text,
	"created_by" text,
	"with_created_by" boolean DEFAULT true NOT NULL,
	"tries" integer DEFAULT 0 NOT NULL,
	"due_at" timestamp with time zone NOT NULL,
	"created_at" timestamp with time zone NOT NULL,
	CONSTRAINT "webhook_wakes_tenant_id_session_id_pk" PRIMARY KEY("tenant_id","session_id")
);
--> statement-breakpoint
CREATE TABLE "webhooks" (
	"tenant_id" text NOT NULL,
	"session_id" text NOT NULL,
	"url" text NOT NULL,
	"secret" text,
	"format" text NOT NULL,
	"created_at" timestamp with time zone NOT NULL,
	CONSTRAINT "webhooks_tenant_id_session_id_pk" PRIMARY KEY("tenant_id","session_id"),
	CONSTRAINT "webhooks_format_known" CHECK ("webhooks"."format" in ('standard', 'session_message'))
);
--> statement-breakpoint
CREATE TABLE "work" (
	"tenant_id" text NOT NULL,
	"work_id" text NOT NULL,
	"parent_session_id" text NOT NULL,
	"child_session_id" text NOT NULL,
	"agent" text NOT NULL,
	"title" text NOT NULL,
	"created_by" text,
	"recovered" boolean DEFAULT false NOT NULL,
	"status" text NOT NULL,
	"created_at" timestamp with time zone NOT NULL,
	"ended_at" timestamp with time zone,
	"deadline_at" timestamp with time zone,
	"revision" integer DEFAULT 0 NOT NULL,
	"last_item_seq" bigint,
	"result_digest" text,
	"result_response_id" text,
	"provisional" boolean DEFAULT false NOT NULL,
	"awaits_text" boolean DEFAULT false NOT NULL,
	"delegation_id" text,
	"unit_id" text,
	"task_index" integer,
	"goal" text,
	"model" text,
	"result" jsonb,
	"retired" boolean DEFAULT false NOT NULL,
	"due_at" timestamp with time zone,
	"child_timeout_ms" bigint,
	"stall" jsonb,
	"stalled" jsonb,
	"interrupt_reason" text,
	"interrupted_at" timestamp with time zone,
	"grace_ms" bigint,
	CONSTRAINT "work_tenant_id_work_id_pk" PRIMARY KEY("tenant_id","work_id"),
	CONSTRAINT "work_task_whole" CHECK (("work"."unit_id" is null) = ("work"."task_index" is null) and ("work"."unit_id" is null) = ("work"."delegation_id" is null)),
	CONSTRAINT "work_task_result_at_end" CHECK ("work"."unit_id" is null or ("work"."ended_at" is null) = ("work"."result" is null)),
	CONSTRAINT "work_status_known" CHECK ("work"."status" in ('launching', 'running', 'cancelling', 'stalling', 'completed', 'failed', 'cancelled', 'interrupted', 'stalled', 'timeout', 'error', 'unknown')),
	CONSTRAINT "work_ended_or_live" CHECK (("work"."ended_at" is null) = ("work"."status" in ('launching', 'running', 'cancelling', 'stalling'))),
	CONSTRAINT "work_due_while_live" CHECK ("work"."ended_at" is null or "work"."due_at" is null),
	CONSTRAINT "work_item_per_revision" CHECK ("work"."unit_id" is not null or ("work"."revision" = 0) = ("work"."last_item_seq" is null))
);
--> statement-breakpoint
ALTER TABLE "items" ADD CONSTRAINT "items_delegation" FOREIGN KEY ("tenant_id","delegation_id") REFERENCES "public"."delegations"("tenant_id","delegation_id") ON DELETE no action ON UPDATE no action;--> statement-breakpoint
ALTER TABLE "late_results" ADD CONSTRAINT "late_results_work" FOREIGN KEY ("tenant_id","work_id") REFERENCES "public"."work"("tenant_id","work_id") ON DELETE cascade ON UPDATE no action;--> statement-breakpoint
ALTER TABLE "turn_responses" ADD CONSTRAINT "turn_responses_work" FOREIGN KEY ("tenant_id","work_id") REFERENCES "public"."work"("tenant_id","work_id") ON DELETE cascade ON UPDATE no action;--> statement-breakpoint
CREATE INDEX "closing_interrupts_by_age" ON "closing_interrupts" USING btree ("closed_at");--> statement-breakpoint
CREATE INDEX "delegations_by_parent" ON "delegations" USING btree ("parent_session_id","tenant_id","delegation_id");--> statement-breakpoint
CREATE INDEX "delegations_active" ON "delegations" USING btree ("parent_session_id","tenant_id") WHERE "delegations"."ended_at" is null;--> statement-breakpoint
CREATE INDEX "delegations_active_by_key" ON "delegations" USING btree ("session_key","tenant_id") WHERE "delegations"."ended_at" is null and "delegations"."session_key" is not null;--> statement-breakpoint
CREATE INDEX "idempotency_keys_by_age" ON "idempotency_keys" USING btree ("created_at");--> statement-breakpoint
CREATE INDEX "items_pending" ON "items" USING btree ("session_id","tenant_id","seq") WHERE "items"."acked_at" is null;--> statement-breakpoint
CREATE INDEX "items_waking" ON "items" USING btree ("session_id","tenant_id","seq") WHERE "items"."acked_at" is null and "items"."wakes";--> statement-breakpoint
CREATE INDEX "items_acked" ON "items" USING btree ("acked_at") WHERE "items"."acked_at" is not null;--> statement-breakpoint
CREATE INDEX "items_by_delegation" ON "items" USING btree ("delegation_id","tenant_id") WHERE "items"."delegation_id" is not null;--> statement-breakpoint
CREATE UNIQUE INDEX "parked_reports_one_per_turn" ON "parked_reports" USING btree ("tenant_id","child_session_id","turn");--> statement-breakpoint
CREATE INDEX "parked_reports_by_parent" ON "parked_reports" USING btree ("parent_session_id","tenant_id") WHERE "parked_reports"."state" = 'parked';--> statement-breakpoint
CREATE INDEX "parked_reports_to_probe" ON "parked_reports" USING btree ("id") WHERE "parked_reports"."state" = 'parked' and "parked_reports"."reason" in ('snapshot_unavailable', 'output_unavailable');--> statement-breakpoint
CREATE INDEX "parked_reports_by_state" ON "parked_reports" USING btree ("state","tenant_id","id");--> statement-breakpoint
CREATE INDEX "sessions_by_parent" ON "sessions" USING btree ("parent_session_id","tenant_id","created_at") WHERE "sessions"."parent_session_id" is not null;--> statement-breakpoint
CREATE INDEX "sessions_by_runner" ON "sessions" USING btree ("runner_id","tenant_id") WHERE "sessions"."runner_id" is not null;--> statement-breakpoint
CREATE INDEX "sessions_deleted" ON "sessions" USING btree ("deleted_at") WHERE "sessions"."deleted_at" is not null;--> statement-breakpoint
CREATE INDEX "sessions_by_tip" ON "sessions" USING btree ("tip_session_id","tenant_id") WHERE "sessions"."tip_session_id" is not null;--> statement-breakpoint
CREATE INDEX "sessions_by_route" ON "sessions" USING btree (("channel" ->> 'route'),"tenant_id") WHERE "sessions"."channel" ->> 'route' is not null;--> statement-breakpoint
CREATE INDEX "turn_responses_by_work" ON "turn_responses" USING btree ("work_id","tenant_id");--> statement-breakpoint
CREATE INDEX "units_by_delegation" ON "units" USING btree ("delegation_id","tenant_id","ordinal");--> statement-breakpoint
CREATE INDEX "viewers_by_session" ON "viewers" USING btree ("session_id","tenant_id");--> statement-breakpoint
CREATE INDEX "wakes_to_repeat" ON "wakes" USING btree ("repeat_at") WHERE "wakes"."repeat_at" is not null;--> statement-breakpoint
CREATE INDEX "webhook_wakes_due" ON "webhook_wakes" USING btree ("due_at");--> statement-breakpoint
CREATE INDEX "work_by_parent" ON "work" USING btree ("parent_session_id","tenant_id","work_id");--> statement-breakpoint
CREATE INDEX "work_by_child" ON "work" USING btree ("child_session_id","tenant_id");--> statement-breakpoint
CREATE INDEX "work_by_unit" ON "work" USING btree ("unit_id","tenant_id","task_index") WHERE "work"."unit_id" is not null;--> statement-breakpoint
CREATE INDEX "work_by_delegation" ON "work" USING btree ("delegation_id","tenant_id","task_index") WHERE "work"."delegation_id" is not null;--> statement-breakpoint
CREATE INDEX "work_due" ON "work" USING btree ("due_at") WHERE "work"."due_at" is not null;--> statement-breakpoint
-- BY HAND: from here to the end it is migrations/by-hand.sql, which drizzle-kit knows nothing of.
-- Rows that are soon updated in place leave room for it in their page (HOT), and tables that grow
-- to millions of rows are vacuumed and analysed long before a fifth of them has changed.
ALTER TABLE "sessions" SET (fillfactor = 50, autovacuum_vacuum_scale_factor = 0.02, autovacuum_vacuum_threshold = 200, autovacuum_analyze_scale_factor = 0.02, autovacuum_analyze_threshold = 200);--> statement-breakpoint
ALTER TABLE "items" SET (fillfactor = 70, autovacuum_vacuum_scale_factor = 0.02, autovacuum_vacuum_threshold = 200, autovacuum_analyze_scale_factor = 0.02, autovacuum_analyze_threshold = 200);--> statement-breakpoint
ALTER TABLE "work" SET (fillfactor = 60, autovacuum_vacuum_scale_factor = 0.02, autovacuum_vacuum_threshold = 200, autovacuum_analyze_scale_factor = 0.02, autovacuum_analyze_threshold = 200);--> statement-breakpoint
ALTER TABLE "parked_reports" SET (fillfactor = 80, autovacuum_vacuum_scale_factor = 0.02, autovacuum_vacuum_threshold = 200);--> statement-breakpoint
ALTER TABLE "assistant_texts" SET (fillfactor = 70, autovacuum_vacuum_scale_factor = 0.02, autovacuum_vacuum_threshold = 200);--> statement-breakpoint
ALTER TABLE "turn_responses" SET (fillfactor = 80, autovacuum_vacuum_scale_factor = 0.02, autovacuum_vacuum_threshold = 200);--> statement-breakpoint
ALTER TABLE "idempotency_keys" SET (autovacuum_vacuum_scale_factor = 0.02, autovacuum_vacuum_threshold = 200);
--> statement-breakpoint
ALTER TABLE "heartbeats" SET (fillfactor = 50, autovacuum_vacuum_scale_factor = 0.02, autovacuum_vacuum_threshold = 200);--> statement-breakpoint
ALTER TABLE "runners" SET (fillfactor = 50, autovacuum_vacuum_scale_factor = 0.02, autovacuum_vacuum_threshold = 200);--> statement-breakpoint
ALTER TABLE "units" SET (fillfactor = 80, autovacuum_vacuum_scale_factor = 0.02, autovacuum_vacuum_threshold = 200);--> statement-breakpoint
ALTER TABLE "delegations" SET (fillfactor = 80, autovacuum_vacuum_scale_factor = 0.02, autovacuum_vacuum_threshold = 200);--> statement-breakpoint
ALTER TABLE "viewers" SET (fillfactor = 50, autovacuum_vacuum_scale_factor = 0.02, autovacuum_vacuum_threshold = 200);--> statement-breakpoint
ALTER TABLE "wakes" SET (fillfactor = 50, autovacuum_vacuum_scale_factor = 0.02, autovacuum_vacuum_threshold = 200);--> statement-breakpoint
ALTER TABLE "webhook_wakes" SET (fillfactor = 70, autovacuum_vacuum_scale_factor = 0.02, autovacuum_vacuum_threshold = 200);
