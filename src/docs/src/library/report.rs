//! The report on a project's documents, for operators.

use crate::{index::FrontMatterStats, model::Tenant};
use countersign_domain::text::plural;
use countersign_provider::Report;

/// Describes the indexed documents of a tenant, and their problems. `external` is the reference documentation.
pub(super) fn describe(
    tenant: &Tenant,
    docs: &FrontMatterStats,
    external: Option<&FrontMatterStats>,
    lacks_repository: bool,
) -> Report {
    let project = &tenant.project;
    let mut detail = format!("{project}{}: {}", tenant.on_branch(), plural(docs.documents, "document"));
    if docs.without_front_matter > 0 {
        detail.push_str(&format!(", {} without front matter", docs.without_front_matter));
    }
    if docs.faulty > 0 {
        detail.push_str(&format!(", {} whose front matter does not match its type", docs.faulty));
    }
    if let Some(external) = external {
        detail.push_str(&format!(", and {} of reference documentation", plural(external.documents, "file")));
    }
    let mut warnings: Vec<String> = Vec::new();
    if lacks_repository {
        warnings.push(format!(
            "{project}: `branches: git` is configured, and its root lies in no git repository, or in one with the reftable \
             format, so branches are not told apart"
        ));
    }
    warnings.extend(docs.faults.iter().map(|(path, problem)| format!("{project}: {path}: {problem}")));
    if docs.faulty > docs.faults.len() {
        warnings.push(format!(
            "{project}: the front matter of {} more does not match its type",
            docs.faulty - docs.faults.len()
        ));
    }
    Report { details: vec![detail], warnings }
}
