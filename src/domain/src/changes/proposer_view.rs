//! The view of a change for its proposer. If the preview was made from state that the proposer could not read, the view
//! must not depend on that state. Otherwise an agent could learn hidden state by proposing changes and comparing the
//! previews.
//!
//! All texts that an agent receives about a change take its preview, headline and fault from here.

use std::borrow::Cow;

use super::{Change, ChangeFault, ChangeState, Diff, DiffLine, FieldDiff, LineOp, Operation};
use countersign_protocol::ErrorKind;

/// Shown in place of a withheld preview.
const WITHHELD_PREVIEW_TEXT: &str =
    "You may not read the current state yourself, so the effect of this change is shown to reviewers only.";
/// Shown in place of the reason why a withheld diff is stale.
const WITHHELD_STALE_TEXT: &str =
    "The state that the preview was based on has changed or cannot be read; a reviewer must look at the change again.";

/// The parts of a change that its proposer may see.
#[derive(Debug)]
pub struct ProposerView<'a> {
    pub operation: Operation,
    pub entity_type: &'a str,
    pub entity_id: Option<&'a str>,
    pub label: Cow<'a, str>,
    pub summary: Cow<'a, str>,
    pub diff: Cow<'a, Diff>,
    pub fault: Option<Cow<'a, ChangeFault>>,
}

impl Change {
    /// Returns `true` if the preview was made from state that the proposer could not read.
    pub fn is_restricted(&self) -> bool {
        self.preview.restricted || self.diff.fields.iter().any(|field| field.restricted)
    }

    /// Returns the view for the proposer, with the preview withheld if it is restricted.
    pub fn for_proposer(&self) -> ProposerView<'_> {
        let mut view = ProposerView {
            operation: self.operation,
            entity_type: &self.target.entity_type,
            entity_id: self.target.id.as_deref(),
            label: Cow::Borrowed(&self.target.label),
            summary: Cow::Borrowed(&self.summary),
            diff: Cow::Borrowed(&self.diff),
            fault: self.fault.as_ref().map(Cow::Borrowed),
        };
        if !self.is_restricted() {
            return view;
        }
        view.entity_id = None;
        view.diff = Cow::Owned(Diff::withheld());
        if self.state == ChangeState::Stale && view.fault.is_some() {
            view.fault = Some(Cow::Owned(ChangeFault::new(ErrorKind::ChangeStale, WITHHELD_STALE_TEXT)));
        }
        let is_module = self.served_by.fingerprint.is_empty();
        // The absence of an entity is also state.
        if is_module || self.operation != Operation::Delete {
            view.operation = Operation::Update;
        }
        // A module names entities by their state; a recipe names them by the proposer's own arguments.
        if is_module {
            view.entity_type = "tool";
            view.label = Cow::Borrowed(&self.tool);
            view.summary = Cow::Owned(format!("Call {}", self.tool));
        }
        view
    }
}

impl Diff {
    /// Creates the diff that a proposer sees in place of a restricted one.
    pub fn withheld() -> Self {
        let field = FieldDiff {
            field: "$preview".into(),
            label: "Preview".into(),
            lines: vec![DiffLine { op: LineOp::Note, text: WITHHELD_PREVIEW_TEXT.into() }],
            ..FieldDiff::default()
        };
        Self { fields: vec![field], truncated: false }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::changes::{PreviewKind, PreviewNote, ServerIdentity, diff::DiffBuilder};

    fn change() -> Change {
        let mut change = crate::changes::testing::change("chg_1", "bot", 1, ChangeState::Stale);
        change.diff = DiffBuilder::new().field("f", "F", Some("secret"), Some("x")).finish();
        change.target.id = Some("7".into());
        change.served_by = ServerIdentity { fingerprint: "sha256:s".into(), label: "s".into() };
        change.fault = Some(ChangeFault { code: "NOT_FOUND".into(), message: "secret".into() });
        change
    }

    #[test]
    fn unrestricted_proposer_sees_whole_preview() {
        let change = change();
        let view = change.for_proposer();
        assert_eq!((view.operation, view.entity_id), (Operation::Create, Some("7")));
        assert_eq!((view.diff.as_ref(), view.fault.unwrap().as_ref()), (&change.diff, change.fault.as_ref().unwrap()));
    }

    #[test]
    fn restricted_view_does_not_depend_on_state() {
        let restricted_view = |alter: &dyn Fn(&mut Change)| {
            let mut change = change();
            change.preview.restricted = true;
            alter(&mut change);
            format!("{:?}", change.for_proposer())
        };
        let first = restricted_view(&|_| {});
        assert!(!first.contains("secret"), "{first}");
        let same: [&dyn Fn(&mut Change); 5] = [
            &|c| c.diff = Diff::default(),
            &|c| c.diff.truncated = true,
            &|c| c.operation = Operation::Update,
            &|c| {
                c.preview = PreviewNote {
                    kind: PreviewKind::Arguments,
                    failed: Some("no".into()),
                    restricted: true,
                    ..PreviewNote::default()
                }
            },
            &|c| c.fault = Some(ChangeFault { code: "X".into(), message: "y".into() }),
        ];
        for alter in same {
            assert_eq!(restricted_view(alter), first);
        }
        // The headline that a module writes reveals state too.
        let module_view = |alter: &dyn Fn(&mut Change)| {
            restricted_view(&|c| {
                c.served_by = ServerIdentity::default();
                alter(c);
            })
        };
        let first = module_view(&|_| {});
        assert_eq!(module_view(&|c| c.target.label = "CORE-1 Secret".into()), first);
        assert_eq!(module_view(&|c| c.target.entity_type = "project".into()), first);
        assert_eq!(module_view(&|c| c.summary = "Update “Secret”".into()), first);
        assert_eq!(module_view(&|c| c.operation = Operation::Delete), first);
        // Changes of older versions mark only the restricted fields.
        let mut old = change();
        old.diff.fields[0].restricted = true;
        assert!(old.is_restricted() && !format!("{:?}", old.for_proposer()).contains("secret"));
    }
}
