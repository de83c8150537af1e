//! Countersign: an MCP gateway that puts a person between an AI agent and every write.
//!
//! # Flow
//!
//! ```text
//! agent ⇄ transport ──message──► Session ──name──► Arc<RouteTable>            (snapshot, no hop)
//! (stdio, WebSocket, HTTP)          │  └─ subscribe / listen / closed ─► Router ── publishes ─┘
//!                                   │                                       ▲ providers, their events
//!              policy: allow ───────┼── call ──► Provider (tracker, gateway tools) ─┘
//!              policy: review ──────┼── preview ─► ProposeChange ─► PendingChanges ─ commit ─► Store
//!                                   │                                     │ after commit
//! reviewer ─ dashboard / CLI / REST ┼── DecideChange ─────────────────────┤── event(seq) ─► Feed ─► dashboards, CLI
//!                                   │                                     └─ Executor: claim, recheck, run, record
//! ```
//!
//! A read costs no hop to another thread: the [`session`] parses the envelope with borrowed text, looks the name up in
//! the published [`router::RouteTable`], asks the [`policy`], and calls the provider from the connection's own thread. A
//! write that policy sends to review is previewed, stored durably by [`pending`], and only then announced; the answer
//! names the change. What a person approves runs later and elsewhere, whether or not the agent is still there.
//!
//! # Layers
//!
//! A lower layer knows nothing of a higher one.
//!
//! 1. [`protocol`]: JSON-RPC, revisions and eras, error codes, header rules. Pure.
//! 2. [`changes`], [`policy`]: the state machine, diffs, the audit chain; what becomes of a call. Pure.
//! 3. [`store`]: one trait, one backend so far (SQLite). The writer is one thread that groups commits.
//! 4. [`providers`]: the built-in modules. [`pending`]: the one writer of changes, the Executor, the feed.
//! 5. [`router`], [`session`], [`middleware`]; [`bridge`], which takes calls to upstreams of any era; [`gateway`] holds
//!    what they share.
//! 6. [`transports`], [`rest`], [`dashboard`], [`attach`], [`cli`]; [`serve`] puts everything together.
//!
//! [`standing_rules`] keeps what reviewers said of calls to come, as [`definitions`] what they said of tools.
//! [`webhooks`] takes the feed to other machines; [`provider_news`] adds what happens to servers.
//!
//! Beside them: [`config`] is proved as a whole before anything opens, [`reload`] proves it anew while the gateway runs, [`auth`] says who asks, [`telemetry`] keeps logs
//! (stderr) and metrics. [`lanes`] are the threads for large messages. [`suggest`] finds what a misspelt name was meant to be. [`deadline`] has time-outs that hardly ever come, [`fast_map`] maps that every request looks into.
//!
//! # Invariants
//!
//! - A call that policy sends to review never reaches its provider before a valid approval ([`pending`] is the only
//!   caller of a reviewed write).
//! - A change is durable before anyone hears of it; every transition is one transaction with compare-and-set on its
//!   version, and one link of the audit chain.
//! - What an upstream says of its tools counts as far as the operator or a reviewer vouches for it, and a reviewer's word
//!   holds for one definition only: another one is reviewed ([`policy::pins`], [`definitions`]).
//! - What was approved is what runs, and where: exact argument bytes, tool definition, the server's command or address and
//!   the fingerprint of the state are compared when it is approved and again just before it runs.
//! - An agent learns nothing of state that it may not read from the preview of what it proposes
//!   ([`changes::proposer`]).
//! - An approval counts until the change runs only as long as the key that it was given with holds, and so does what a
//!   standing rule allows.
//! - It runs at most once: the claim is durable before the provider is called, and nothing is retried after.
//! - Whoever proposed a change cannot approve it, and reaching the port is never enough to decide.
//! - Stateless requests share nothing: a connection's bookkeeping speaks for none of them.
//! - Everything that a peer can make grow has a bound, and what is over it gets an error with a stable code.
//!
//! # Deliberately absent
//!
//! - No `serde_json::Value` of a payload on the way of a read: only arguments become a tree, once, to be validated.
//! - No future around I/O inside a shared actor, and no supervision: when a core actor dies, the process ends and the
//!   store recovers at the next start.
//! - No state inside the WebSocket actor: `actix-web-actors` is confined to two pumps that only move frames, because
//!   such an actor stands still while its peer does not read.
//! - No retry of a write, ever.

pub mod app;
pub mod attach;
pub mod auth;
pub mod bridge;
pub mod cli;
pub mod config;
pub mod domain;
pub mod exchange;
pub mod http;
pub mod protocol;
pub mod provider;
pub mod reload;
pub mod review;
pub mod routing;
pub mod runtime;
pub mod session;
pub mod store;
pub mod telemetry;
pub mod tracker;
pub mod upstream;
pub mod webhooks;
