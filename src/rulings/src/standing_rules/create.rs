//! Standing rules that a reviewer creates from a change, for the same call or similar ones.

use std::{borrow::Cow, sync::Arc};

use serde::Deserialize;
use utoipa::ToSchema;

use super::{StandingRuleService, recording::RuleEvent, unrestricted_rule};
use crate::completion::run_to_completion;
use countersign_domain::{
    changes::{Change, person::Person},
    policy::{
        AcceptanceMark, ArgumentPattern, Decision, StandingRule, StandingVerdict, Verdict,
        argument_patterns::{MAX_PATTERNS, read_arguments},
        standing_rules::{AccountRef, MAX_ALLOW_SECONDS, MAX_DENY_SECONDS, can_approve_alone},
    },
    principal::Principal,
};
use countersign_protocol::{ErrorKind, McpError, arguments::canonical_text_hash};
use countersign_routing::table::ToolRoute;
use countersign_runtime::{background, crash::crash_point};

/// The maximum number of bytes of arguments that are kept for display.
const MAX_KEPT_ARGUMENTS_BYTES: usize = 64 << 10;

/// The arguments to which a rule applies: exactly those of its change, those that match conditions, or any.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize, ToSchema)]
#[serde(rename_all = "lowercase")]
pub enum RuleArguments {
    Exact,
    Matching,
    Any,
}

/// The callers to which a rule applies: the proposer of its change, or everybody.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize, ToSchema)]
#[serde(rename_all = "lowercase")]
pub enum RuleCallers {
    #[serde(rename = "same")]
    Proposer,
    Any,
}

/// A request to create a standing rule from a change.
#[derive(Clone, Debug, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct RuleRequest {
    pub verdict: StandingVerdict,
    pub arguments: RuleArguments,
    /// The conditions on single arguments, for `arguments: matching`. All of them must hold.
    #[serde(default)]
    #[schema(max_items = 16)]
    pub matching: Vec<ArgumentPattern>,
    #[serde(rename = "principal")]
    pub callers: RuleCallers,
    /// The duration in seconds. An `allow` rule requires it, with at most 30 days.
    #[serde(rename = "for")]
    #[schema(minimum = 1, maximum = 31622400)]
    pub valid_for_seconds: Option<u64>,
    #[schema(max_length = 4096)]
    pub comment: Option<String>,
}

impl StandingRuleService {
    /// Creates a rule from a change, on behalf of a reviewer.
    ///
    /// # Errors
    /// `VALIDATION_FAILED` (no end, too long, a required comment is missing, or the arguments were deleted), `SELF_APPROVAL`,
    /// `FORBIDDEN` (the change needs more than this reviewer's approval), `VERSION_CONFLICT` (the tool is gone or has changed, or
    /// the call now counts as another operation), `POLICY_DENIED`, `RATE_LIMITED`, `STORE_UNAVAILABLE`.
    pub async fn create(
        self: &Arc<Self>,
        change: &Arc<Change>,
        reviewer: &Principal,
        request: RuleRequest,
    ) -> Result<Arc<StandingRule>, McpError> {
        let (this, change, reviewer) = (Arc::clone(self), Arc::clone(change), reviewer.clone());
        run_to_completion(async move {
            let _one_at_a_time = this.rules_lock.lock().await;
            let route = this.deps.routes.load().tool_of_provider(&change.tool, &change.provider);
            this.check_may_create(&change, route.as_ref(), &reviewer, &request).await?;
            this.check_limits(&reviewer, 1)?;
            let now = this.now();
            let validity = request
                .valid_for_seconds
                .and_then(|seconds| i64::try_from(seconds).ok())
                .map(jiff::SignedDuration::from_secs);
            let tool = route
                .as_ref()
                .map_or(Cow::Borrowed(change.tool.as_str()), |route| route.qualified_name(&change.arguments));
            let is_exact = request.arguments == RuleArguments::Exact;
            let arguments = change.arguments.get();
            let rule = StandingRule {
                served_by: Some(change.served_by.fingerprint.clone()),
                principal: (request.callers == RuleCallers::Proposer).then(|| change.proposer.principal.clone()),
                proposer: Some(AccountRef {
                    name: change.proposer.principal.clone(),
                    owner: change.proposer.owner.clone(),
                    key_id: change.proposer.key_id.clone(),
                    other_names: Person::from_proposer(&change.proposer).other_names.to_vec(),
                }),
                arguments_hash: is_exact.then(|| canonical_text_hash(arguments)),
                arguments: (is_exact && arguments.len() <= MAX_KEPT_ARGUMENTS_BYTES)
                    .then(|| Arc::clone(&change.arguments)),
                matching: request.matching,
                from_change: Some(change.id.clone()),
                comment: request.comment,
                expires_at: validity.and_then(|validity| now.checked_add(validity).ok()),
                ..unrestricted_rule(request.verdict, (&change.provider, &tool, &change.tool_hash), &reviewer, now)
            }
            .with_deadline(now);
            crash_point("before_rule_created");
            this.store_and_announce(&rule, RuleEvent::Created, &reviewer.name, rule.comment.as_deref()).await?;
            crash_point("after_rule_created");
            let StandingRule { id, verdict, .. } = &rule;
            tracing::info!(rule = %id, change = %change.id, by = %reviewer.name, ?verdict, "a standing rule was created");
            Ok(Arc::new(rule))
        })
        .await
    }

    pub(super) async fn check_may_create(
        &self,
        change: &Arc<Change>,
        route: Option<&Arc<ToolRoute>>,
        reviewer: &Principal,
        request: &RuleRequest,
    ) -> Result<(), McpError> {
        check_validity(request)?;
        check_arguments(change, request)?;
        if change.terms.require_comment && request.comment.is_none() {
            return Err(invalid("the change requires a comment, so a rule from it requires one too"));
        }
        check_operation(change, route)?;
        // A rule outlasts the change, so those who may decide only because the change has waited long do not create one.
        if !self.deps.reviewers.may_decide(&change.terms.reviewers, reviewer) {
            return Err(forbidden("the change requires other reviewers"));
        }
        if request.verdict == StandingVerdict::Deny {
            return Ok(());
        }
        self.check_approver(change, reviewer)?;
        let route = find_unchanged_route(change, route)?;
        self.check_policy(route, change, reviewer).await
    }

    /// Checks that the reviewer alone may approve the change.
    fn check_approver(&self, change: &Change, reviewer: &Principal) -> Result<(), McpError> {
        let person = Person::from_principal(reviewer);
        if change.proposer_could_be(person) {
            let message = "you cannot allow calls like those that you proposed yourself";
            return Err(McpError::new(ErrorKind::SelfApproval, message));
        }
        if !change.terms.editors_may_approve() && change.editors_could_include(person) {
            let message = "you have edited the arguments of this change, so somebody else must create a rule that allows such \
                           calls";
            return Err(McpError::new(ErrorKind::SelfApproval, message));
        }
        if !can_approve_alone(&self.deps.reviewers, &change.terms, reviewer) {
            return Err(forbidden(
                "the change needs several approvals, or a preview or a sign-in for each call, which a standing rule cannot replace",
            ));
        }
        Ok(())
    }

    /// Checks that the current policy lets the reviewer alone approve the call.
    async fn check_policy(
        &self,
        route: &Arc<ToolRoute>,
        change: &Arc<Change>,
        reviewer: &Principal,
    ) -> Result<(), McpError> {
        let decision = current_decision(route, change).await?;
        if decision.mark == Some(AcceptanceMark::OperationUnknown) {
            return Err(forbidden("the tool's recipe does not know the operation; name it in `operations` first"));
        }
        if decision.mark.is_some() {
            return Err(forbidden("nobody has accepted the tool's definition yet; accept the definition first"));
        }
        if decision.intended_verdict() == Verdict::Deny {
            return Err(McpError::new(ErrorKind::PolicyDenied, "the current policy denies such calls"));
        }
        if decision.intended_verdict() == Verdict::Review
            && !can_approve_alone(&self.deps.reviewers, &decision.terms, reviewer)
        {
            return Err(forbidden("the current policy requires more than your approval alone"));
        }
        Ok(())
    }
}

fn invalid(message: impl Into<Cow<'static, str>>) -> McpError {
    McpError::new(ErrorKind::ValidationFailed, message)
}

fn forbidden(message: &'static str) -> McpError {
    McpError::new(ErrorKind::Forbidden, message)
}

/// Checks that the rule ends in time.
fn check_validity(request: &RuleRequest) -> Result<(), McpError> {
    let is_allowing = request.verdict == StandingVerdict::Allow;
    let max_seconds = if is_allowing { MAX_ALLOW_SECONDS } else { MAX_DENY_SECONDS };
    match request.valid_for_seconds {
        None if is_allowing => {
            Err(invalid(format!("a rule that allows needs an end: `for` must be 1 to {MAX_ALLOW_SECONDS} seconds")))
        }
        Some(seconds) if seconds == 0 || seconds > max_seconds => {
            Err(invalid(format!("`for` must be 1 to {max_seconds} seconds")))
        }
        _ => Ok(()),
    }
}

/// Checks that the rule covers arguments that the reviewer sees.
fn check_arguments(change: &Change, request: &RuleRequest) -> Result<(), McpError> {
    if change.redacted.is_some() && request.arguments != RuleArguments::Any {
        return Err(invalid("the arguments of the change are no longer kept, so a rule can only cover any arguments"));
    }
    check_patterns(change, request).map_err(invalid)
}

/// Checks that the recipe still finds the operation in the arguments that the change shows, because the rule covers that
/// operation.
fn check_operation(change: &Change, route: Option<&Arc<ToolRoute>>) -> Result<(), McpError> {
    let Some(route) = route else { return Ok(()) };
    let subject = route.qualified_name(&change.arguments);
    let operation = subject.get(route.name.len() + 1..).unwrap_or_default();
    if operation != change.preview.tool_operation.as_deref().unwrap_or_default() {
        let message = "the call counts as another operation than the change shows; propose the change again";
        return Err(McpError::new(ErrorKind::VersionConflict, message));
    }
    Ok(())
}

/// Returns the tool if it and its server are as the change shows.
fn find_unchanged_route<'a>(
    change: &Change,
    route: Option<&'a Arc<ToolRoute>>,
) -> Result<&'a Arc<ToolRoute>, McpError> {
    let is_unchanged = |route: &&Arc<ToolRoute>| {
        route.hash == change.tool_hash
            && change.served_by.fingerprint == route.provider.as_provider().target_fingerprint()
    };
    route.filter(is_unchanged).ok_or_else(|| {
        let message = "the tool is gone or has changed since the proposal, or its server has another command or address; \
                       propose the change again";
        McpError::new(ErrorKind::VersionConflict, message)
    })
}

/// Checks the conditions on the arguments. They must cover the change itself, which the reviewer sees.
fn check_patterns(change: &Change, request: &RuleRequest) -> Result<(), &'static str> {
    if (request.arguments == RuleArguments::Matching) == request.matching.is_empty() {
        return Err("`matching` belongs to `arguments: matching`, and needs at least one condition there");
    }
    if request.matching.is_empty() {
        return Ok(());
    }
    if request.verdict == StandingVerdict::Deny {
        return Err("only a rule that allows can have `matching`");
    }
    if request.matching.len() > MAX_PATTERNS {
        return Err("`matching` has too many conditions");
    }
    request.matching.iter().try_for_each(ArgumentPattern::check)?;
    let arguments = read_arguments(&change.arguments).unwrap_or_default();
    if !request.matching.iter().all(|pattern| pattern.matches(&arguments)) {
        return Err("the arguments of the change itself do not meet `matching`");
    }
    Ok(())
}

/// Returns the decision of the current policy on the call of a change.
pub(super) async fn current_decision(route: &Arc<ToolRoute>, change: &Arc<Change>) -> Result<Decision, McpError> {
    let (route, change) = (Arc::clone(route), Arc::clone(change));
    // Evaluating a condition may take long.
    let decision = background::spawn_blocking(move || route.decide_for_proposer(&change.proposer, &change.arguments));
    decision.await.map_err(|_| McpError::new(ErrorKind::Internal, "the policy could not be evaluated"))
}
