//! Properties of all sequences of events.

use proptest::prelude::*;

use super::*;

proptest! {
    #[test]
    fn invariants_hold_for_any_event_sequence(
        quorum in 1_u32..4,
        undo_for in 0_u64..40,
        rejects in any::<bool>(),
        steps in proptest::collection::vec((0_usize..18, 0_usize..7, any::<bool>(), -50_i64..50), 0..60),
    ) {
        let mut current = change(ChangeState::Pending);
        current.terms.quorum = quorum;
        current.terms.undo_for = undo_for;
        current.terms.on_expiry = if rejects { OnExpiry::Reject } else { OnExpiry::Expire };
        current.proposer.owner = Some("dave".into());
        let terms = current.terms.clone();
        let (mut claims, mut verifications, mut approved_digest) = (0, 0, None);
        for (event_index, principal_index, right_version, time) in steps {
            let (name, owner) = [
                ("alice", None), ("bob", None), ("carol", None), ("agent", None),
                ("phone", Some("alice")), ("desk", Some("bob")), ("endpoint", Some("dave")),
            ][principal_index];
            let version = if right_version { current.version } else { current.version + 1 };
            let event = match event_index {
                0 => ChangeEvent::Decide(vote(name, owner, ReviewVerdict::Approve, version)),
                1 => ChangeEvent::Decide(vote(name, owner, ReviewVerdict::Reject, version)),
                2 => ChangeEvent::Edit {
                    editor: principal_named(name, owner),
                    comment: None,
                    call: revised_call(&format!(r#"{{"a":{}}}"#, time / 10), "edited", terms.clone()),
                },
                3 => ChangeEvent::Unapprove { reviewer: principal_named(name, owner), all: !right_version },
                4 => ChangeEvent::Withdraw { proposer: principal_named(name, owner), reason: None },
                _ => events(&current)[event_index].1.clone(),
            };
            let Ok(step) = apply(&current, event, time_at(time)) else { continue };
            let after = step.after;
            prop_assert!(!current.state.is_final() || step.kind == EventKind::Verified, "a final change moved");
            if step.kind == EventKind::Verified {
                verifications += 1;
                prop_assert_eq!(after.state, current.state);
            }
            prop_assert!(verifications <= 1, "verified twice");
            prop_assert_eq!(after.version, current.version + 1);
            prop_assert!(after.updated_at >= current.updated_at);
            prop_assert_eq!(step.from, Some(current.state));
            if step.kind == EventKind::Approved {
                let approvers: std::collections::HashSet<_> = after
                    .decisions
                    .iter()
                    .filter(|d| d.verdict == ReviewVerdict::Approve)
                    .map(|d| d.owner.as_ref().unwrap_or(&d.reviewer).as_str())
                    .collect();
                prop_assert!(approvers.len() >= quorum as usize, "{:?}", approvers);
                prop_assert!(!approvers.contains("agent") && !approvers.contains("dave"));
                approved_digest = Some(after.digest.clone());
            }
            prop_assert!(after.run_after.is_none() || after.state == ChangeState::Approved);
            prop_assert!(after.run_after.is_none_or(|end| end > after.updated_at && end < after.expires_at));
            prop_assert_eq!(after.original_arguments().get(), "{}", "the original arguments are kept");
            prop_assert_eq!(after.edits.last().map(|e| e.to.clone()), after.edits.last().map(|_| arguments_hash(&after.arguments)));
            if step.kind == EventKind::Edited {
                prop_assert!(name != "agent" && owner != Some("dave") && after.decisions.is_empty());
            }
            if step.kind == EventKind::Executing {
                claims += 1;
                prop_assert_eq!(current.state, ChangeState::Approved);
                prop_assert_eq!(approved_digest.as_ref(), Some(&after.digest), "the approved content runs");
            }
            if matches!(after.state, ChangeState::Applied | ChangeState::OutcomeUnknown) {
                prop_assert_eq!(claims, 1);
            }
            prop_assert!(claims <= 1, "claimed twice");
            current = after;
        }
    }
}
