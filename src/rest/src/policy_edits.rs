//! Edits the rules of the policy in the configuration file, with a dry run on recorded calls.

use actix_web::{HttpRequest, HttpResponse, web};
use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

use super::{
    Caller, Problem,
    body::{Body, Submission},
    file_edits::{Editor, FileState, check_editing_is_on, to_problem},
    json_response,
    rules::ChangeLink,
};
use countersign_config::edit::{
    Settings,
    rules::{RuleEntry, rules_in},
};
use countersign_reload::{
    Reloader,
    file_edits::{EditSummary, FileChange as _},
    policy_edits::RuleList,
};
use countersign_rulings::{
    dry_run::{DifferingCall, PolicyDryRun, VerdictWithRule},
    standing_rules::StandingRuleService,
};

/// Maximum size in bytes of a body with rules.
const MAX_RULES_BYTES: usize = 512 << 10;
/// Maximum number of rules in a body.
const MAX_RULES: usize = 1000;
/// Maximum number of differing calls in a response.
const MAX_DIFFERENCES: usize = 100;

/// The rules of the configuration file.
#[derive(Serialize, ToSchema)]
#[serde(rename_all = "camelCase")]
struct PolicyFile {
    #[serde(flatten)]
    state: FileState,
    /// The keys of each rule, in order, including disabled rules.
    #[schema(value_type = Vec<Object>)]
    rules: Vec<Settings>,
}

/// Returns the rules of the configuration file, and whether they can be edited here.
#[utoipa::path(get, path = "/api/policy/file", operation_id = "getPolicyFile", responses(
    (status = 200, description = "The rules of the file", body = PolicyFile)))]
pub async fn file(
    caller: Caller,
    request: HttpRequest,
    reloader: web::Data<Reloader>,
) -> Result<HttpResponse, Problem> {
    let (state, read) = FileState::read(&caller.principal, &request, &reloader).await?;
    let rules = read.and_then(|file| rules_in(file.text()).ok()).unwrap_or_default();
    Ok(json_response(&PolicyFile { state, rules }))
}

/// A rule of the new list. It is either the present rule at the index `kept`, or a rule with the keys `settings`, which may
/// replace the present one at the index `replaces`.
#[derive(Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
struct SubmittedRule {
    #[serde(rename = "kept")]
    kept_index: Option<usize>,
    replaces: Option<usize>,
    #[schema(value_type = Option<Object>)]
    settings: Option<Settings>,
}

impl SubmittedRule {
    fn into_entry(self) -> Option<RuleEntry> {
        match self {
            Self { kept_index: Some(index), replaces: None, settings: None } => Some(RuleEntry::Existing(index)),
            Self { kept_index: None, replaces, settings: Some(settings) } => {
                Some(RuleEntry::New { replaces, settings })
            }
            _ => None,
        }
    }
}

#[derive(Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct PolicyEditRequest {
    /// The version of the file that was shown.
    version: String,
    /// All rules in their new order. A rule that is left out is removed.
    #[schema(max_items = 1000)]
    rules: Vec<SubmittedRule>,
    /// Only shows what would change.
    #[serde(default)]
    preview: bool,
}

impl Body for PolicyEditRequest {
    const MAX_BYTES: Option<usize> = Some(MAX_RULES_BYTES);
}

/// A recorded call whose verdict would differ.
#[derive(Serialize, ToSchema)]
struct VerdictDifference {
    change: ChangeLink,
    before: VerdictWithRule,
    after: VerdictWithRule,
}

/// The verdicts of the edited policy on the calls that became changes in the last 30 days.
#[derive(Serialize, ToSchema)]
#[schema(as = PolicyDryRun)]
struct DryRunView {
    /// The number of changes that were compared.
    compared: usize,
    /// `false` if there were too many changes to compare all of them.
    complete: bool,
    /// The number of calls whose verdicts would differ.
    differing: usize,
    /// The newest of these calls.
    differences: Vec<VerdictDifference>,
}

impl From<PolicyDryRun> for DryRunView {
    fn from(PolicyDryRun { compared, is_complete, differences }: PolicyDryRun) -> Self {
        let differing = differences.len();
        let view = |DifferingCall { change, before, after }: DifferingCall| VerdictDifference {
            change: ChangeLink::new(&change),
            before,
            after,
        };
        let differences = differences.into_iter().take(MAX_DIFFERENCES).map(view).collect();
        Self { compared, complete: is_complete, differing, differences }
    }
}

/// The result of an edit, or of its preview.
#[derive(Serialize, ToSchema)]
#[serde(rename_all = "camelCase")]
struct PolicyEditResult {
    #[serde(flatten)]
    summary: EditSummary,
    /// The lines to write into the file by hand.
    yaml: String,
    /// Only in a preview.
    #[serde(skip_serializing_if = "Option::is_none")]
    dry_run: Option<DryRunView>,
}

/// Changes the rules of the policy in the configuration file.
///
/// Requires the role admin, or the sign-in of the gateway's own user at the machine, and `dashboard.edit`. Rules that are kept keep
/// their lines and comments. What loosens the policy waits for consent, as after any change of the file. The response is 409 if
/// the file has another version. With `preview`, nothing is written, and the response shows the changed lines and a dry run on
/// recorded calls.
#[utoipa::path(put, path = "/api/policy/rules", operation_id = "editPolicy", request_body = PolicyEditRequest,
    responses((status = 200, description = "The edit", body = PolicyEditResult), (status = 409)))]
pub async fn replace(
    Submission { principal, body: PolicyEditRequest { version, rules, preview }, .. }: Submission<PolicyEditRequest>,
    request: HttpRequest,
    reloader: web::Data<Reloader>,
    standing_rules: web::Data<StandingRuleService>,
) -> Result<HttpResponse, Problem> {
    let editor = Editor::new(&principal, &request, &reloader)?;
    if rules.len() > MAX_RULES {
        return Err(Problem::invalid("there are too many rules"));
    }
    let entries: Option<Vec<RuleEntry>> = rules.into_iter().map(SubmittedRule::into_entry).collect();
    let entries = entries
        .ok_or_else(|| Problem::invalid("each rule needs either `kept`, or `settings` with or without `replaces`"))?;
    let list = RuleList(entries);
    let file = reloader.read_file().await.map_err(to_problem)?;
    let yaml = list.to_yaml(file.text());
    let with_yaml = |problem: Problem| problem.with("yaml", yaml.clone());
    if preview {
        let (summary, config) = reloader.preview_edit(&file, &list).map_err(|error| with_yaml(to_problem(error)))?;
        let dry_run = standing_rules.dry_run(&config.policy).await?;
        return Ok(json_response(&PolicyEditResult { summary, yaml, dry_run: Some(dry_run.into()) }));
    }
    check_editing_is_on(&reloader)?;
    let summary = editor.edit_file(list, version).await.map_err(with_yaml)?;
    Ok(json_response(&PolicyEditResult { summary, yaml, dry_run: None }))
}
