//! Answers the calls of the gateway's tools.

use std::{sync::Arc, time::Duration};

use serde_json::value::RawValue;
use tokio::time::Instant;

use super::{
    GatewayTools,
    text::{next_step, progress_message},
    tools::{ChangeIdArgs, ListArgs, MAX_CURSOR_CHARS, WaitArgs, WaitGoal, WithdrawArgs, wait_bounds},
    view::{ListView, ListedChange, change_result, to_result, wait_result},
};
use crate::ChangeFilter;
use countersign_domain::{
    changes::{Change, ChangeState},
    principal::Principal,
    text::truncate,
};
use countersign_protocol::{ErrorKind, McpError};
use countersign_provider::{
    CallContext, ToolResult,
    schema::parse_arguments,
    text::{invalid_argument as invalid, one_line},
};

/// The interval between progress notifications during a wait.
const PROGRESS_INTERVAL: Duration = Duration::from_secs(5);

/// Returns the states that are not final.
pub(super) fn open_states() -> Vec<ChangeState> {
    ChangeState::VARIANTS.iter().copied().filter(|state| !state.is_final()).collect()
}

fn not_found(id: &str) -> McpError {
    let short_id = truncate(id, 64);
    McpError::new(ErrorKind::ChangeNotFound, format!("There is no change `{short_id}` of yours; see list_changes."))
        .with("changeId", short_id)
}

impl GatewayTools {
    /// Returns the change if this principal may see it: its own, or any if it may view all.
    pub(super) async fn visible_change(&self, id: &str, principal: &Principal) -> Result<Arc<Change>, McpError> {
        let found = self.changes.get(id).await?;
        found.filter(|change| may_see(change, principal)).ok_or_else(|| not_found(id))
    }

    pub(super) async fn get_change(&self, arguments: &RawValue, ctx: &CallContext) -> Result<ToolResult, McpError> {
        let args: ChangeIdArgs = parse_arguments(arguments)?;
        Ok(change_result(&*self.visible_change(&args.change_id, &ctx.principal).await?))
    }

    pub(super) async fn list_changes(&self, arguments: &RawValue, ctx: &CallContext) -> Result<ToolResult, McpError> {
        let args: ListArgs = parse_arguments(arguments)?;
        let states = parse_status(args.status.as_deref())?;
        if args.cursor.as_deref().is_some_and(|c| c.len() > MAX_CURSOR_CHARS) {
            return Err(invalid(
                "/cursor",
                "maxLength",
                "cursor is not valid here; call list_changes without it to begin again.",
            ));
        }
        let filter = ChangeFilter { states, principals: vec![ctx.principal.name.clone()], ..ChangeFilter::default() };
        let page = self.changes.list(filter, args.limit.0, args.cursor).await?;
        let mut text = String::with_capacity(64 + page.items.len() * 200);
        if page.items.is_empty() {
            text.push_str("You have no such changes.\n");
        }
        for change in &page.items {
            use std::fmt::Write as _;
            let _ = writeln!(
                text,
                "- {} [{}] {} | proposed {}",
                change.id,
                change.state.as_str(),
                one_line(&change.for_proposer().summary, 400),
                change.created_at
            );
        }
        if let Some(cursor) = &page.next_cursor {
            text.push_str(&format!("There are more: call again with cursor {cursor}\n"));
        }
        let changes = page.items.iter().map(|change| ListedChange::new(change)).collect();
        let answer = ListView { changes, next_cursor: page.next_cursor.as_deref() };
        Ok(to_result(&text, &answer))
    }

    pub(super) async fn wait_for_change(
        &self,
        arguments: &RawValue,
        ctx: &CallContext,
    ) -> Result<ToolResult, McpError> {
        let args: WaitArgs = parse_arguments(arguments)?;
        let (max, default) = wait_bounds(self.max_wait);
        let seconds = args.timeout_seconds.map_or(Ok(Duration::from_secs(default)), Duration::try_from_secs_f64);
        let timeout = seconds.ok().filter(|time| (Duration::from_secs(1)..=Duration::from_secs(max)).contains(time));
        let Some(timeout) = timeout else {
            return Err(invalid("/timeoutSeconds", "maximum", format!("timeoutSeconds must be from 1 to {max}.")));
        };
        let goal = args.until;
        let mut change = self.visible_change(&args.change_id, &ctx.principal).await?;
        let started_at = Instant::now();
        let mut last_progress = -1.0;
        loop {
            if goal.is_reached(change.state) {
                return Ok(wait_result(&change, false));
            }
            let elapsed = started_at.elapsed();
            let Some(remaining) = timeout.checked_sub(elapsed).filter(|remaining| !remaining.is_zero()) else {
                return Ok(wait_result(&change, true));
            };
            let reports_progress = ctx.progress.has_listener();
            if reports_progress && elapsed.as_secs_f64() > last_progress {
                last_progress = elapsed.as_secs_f64();
                ctx.progress.progress(last_progress, Some(timeout.as_secs_f64()), Some(&progress_message(&change)));
            }
            let pause = if reports_progress { remaining.min(PROGRESS_INTERVAL) } else { remaining };
            let wait_started_at = Instant::now();
            let latest = tokio::select! {
                latest = self.changes.wait(&change.id, change.version, pause) => latest?,
                () = ctx.cancel.cancelled() => return Err(McpError::new(ErrorKind::Cancelled, "The wait was cancelled.")),
            };
            let latest = latest.ok_or_else(|| not_found(&change.id))?;
            // An early return without a new version means that the gateway is shutting down.
            let returned_early = latest.version <= change.version && wait_started_at.elapsed() < pause;
            change = latest;
            if returned_early && !goal.is_reached(change.state) {
                return Ok(wait_result(&change, true));
            }
        }
    }

    pub(super) async fn withdraw_change(
        &self,
        arguments: &RawValue,
        ctx: &CallContext,
    ) -> Result<ToolResult, McpError> {
        let args: WithdrawArgs = parse_arguments(arguments)?;
        self.visible_change(&args.change_id, &ctx.principal).await?;
        match self.changes.withdraw(&args.change_id, &ctx.principal, args.reason).await {
            Ok(change) => Ok(change_result(&change)),
            Err(refused) => match refused.current {
                // A repeated withdrawal succeeds.
                Some(current) if current.state == ChangeState::Withdrawn => Ok(change_result(&current)),
                Some(current) => {
                    Err(refused.error.with("status", current.state.as_str()).with("nextStep", next_step(&current)))
                }
                None if refused.error.kind == ErrorKind::ChangeNotFound => Err(not_found(&args.change_id)),
                None => Err(refused.error),
            },
        }
    }
}

impl WaitGoal {
    /// Returns `true` if the wait can end. An unknown outcome ends it too, since it may stay unknown for days.
    fn is_reached(self, state: ChangeState) -> bool {
        let decided = matches!(state, ChangeState::Approved | ChangeState::Executing);
        state.is_final() || state == ChangeState::OutcomeUnknown || (decided && self == Self::Decided)
    }
}

/// Returns `true` if the change is the principal's own, or if the principal may view all changes.
pub(super) fn may_see(change: &Change, principal: &Principal) -> bool {
    change.proposer.principal == principal.name || principal.role.may_view()
}

fn parse_status(status: Option<&str>) -> Result<Vec<ChangeState>, McpError> {
    match status {
        None => Ok(Vec::new()),
        Some("open") => Ok(open_states()),
        Some(name) => ChangeState::parse(name)
            .map(|state| vec![state])
            .ok_or_else(|| invalid("/status", "enum", "status must be `open` or a status of a change.")),
    }
}
