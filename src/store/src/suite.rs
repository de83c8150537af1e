//! One test suite for all backends, which uses only [`StoreLocation`] and the traits.

mod accounts;
mod credentials;
mod deliveries;
mod moving;
mod people;
mod plans;
mod queries;
mod records;
mod rule_counts;
mod writes;

use std::{
    path::Path,
    sync::{Arc, Mutex, atomic::AtomicUsize, atomic::Ordering},
    time::{Duration, Instant},
};

use proptest::prelude::*;
use serde_json::{Value, json};

use self::{
    accounts::*, credentials::*, deliveries::*, people::*, plans::*, queries::*, records::*, rule_counts::*, writes::*,
};
use super::{
    accounts::{AccountKey, AccountStore, StoredAccount},
    drafts::{
        UndoRace, claim_draft, create_approved, created_draft, draft_for, submit, transition_draft, updated_draft,
        write,
    },
    keys::{ApiKey, CodeOutcome, Credentials, SignIn, StoredCode},
    people::{ProviderSession, StoredPerson},
    webhooks::{AttemptResult, DeliveryState, PendingDelivery},
    *,
};
use countersign_domain::{
    changes::{
        Absence, AbsentPerson, Verification,
        audit::{EntryContent, Verifier},
        diff::DiffBuilder,
        digest::body_hash,
        testing::change,
    },
    policy::KeyHolder,
    principal::{Claims, Principal, Role, SecretHash, person_key_id},
};
use countersign_postgres::url_of;

/// Returns the location of the store that belongs to a directory. The same directory always has the same store.
type LocationOf = fn(&Path) -> StoreLocation;

/// Returns the location of the PostgreSQL database that belongs to a directory.
fn server_database(dir: &Path) -> StoreLocation {
    StoreLocation::server(&url_of(dir), None).unwrap()
}

fn time_at(second: i64) -> Timestamp {
    Timestamp::from_second(1_800_000_000 + second).unwrap()
}

macro_rules! suite {
    ($backend:ident, $at:expr) => {
        mod $backend {
            suite!(@tests $at;
                writes_are_read_back_after_reopening, write_with_wrong_version_is_refused,
                ids_and_idempotency_keys_are_unique, failed_write_does_not_affect_others,
                callbacks_run_in_commit_order, one_of_many_concurrent_writes_succeeds, listings_are_filtered_paged_and_bounded,
                live_changes_and_counts_match_states, overview_has_transitions_and_waiting_changes, bundles_are_found_among_recent_proposals, audit_pages_form_a_valid_chain, searches_find_changes_and_entries,
                any_character_is_stored, pruning_removes_old_records_once, redacted_change_refuses_a_verification,
                pins_and_rules_are_kept_with_entries, rule_ends_only_once, uses_of_a_rule_add_up, record_about_a_change_is_written_once, policy_is_kept_after_reopening,
                target_stays_taken_after_an_unknown_outcome, steps_of_a_plan_are_claimed_in_order, undone_approval_is_never_followed_by_a_run,
                verification_is_kept_with_its_event);
            suite!(@plain $at;
                store_behaves_like_the_model, key_is_found_by_hash_until_revoked,
                key_use_is_recorded_once_a_minute, sign_in_is_kept_until_deleted, creators_of_a_key_count_after_a_sign_in_with_it,
                code_is_taken_by_one_caller, key_changes_have_audit_entries,
                token_key_is_recorded_once_and_replaced_on_demand, signed_in_person_has_current_role, refresh_is_claimed_by_one_caller,
                sign_in_follows_other_processes, revoked_person_stays_revoked, last_key_of_an_owner_ends_accounts, token_is_used_once,
                used_token_deletes_unused_codes,
                absence_is_kept_until_it_ends, revocation_ends_absences_and_deputyships,
                account_is_kept_until_removed, new_connection_invalidates_old_versions,
                tokens_are_renewed_by_one_caller, registration_is_replaced,
                rule_counts_add_up_and_old_hours_are_deleted, deliveries_wait_until_finished,
                old_finished_deliveries_are_deleted);
        }
    };
    (@tests $at:expr; $($name:ident),*) => {
        $(#[tokio::test] async fn $name() { super::$name($at).await; })*
    };
    (@plain $at:expr; $($name:ident),*) => {
        $(#[test] fn $name() { super::$name($at); })*
    };
}

/// Reads the source: each folder that implements the trait must have a `suite!` line below.
#[test]
fn every_backend_is_in_the_suite() {
    let suite = include_str!("suite.rs");
    let source = Path::new(env!("CARGO_MANIFEST_DIR")).join("src");
    let mut backends = 0;
    for folder in std::fs::read_dir(source).unwrap().map(|entry| entry.unwrap().path()) {
        let text = std::fs::read_to_string(folder.join("mod.rs")).unwrap_or_default();
        if text.lines().any(|line| line.starts_with("impl StoreBackend for ")) {
            let name = folder.file_name().unwrap().to_str().unwrap().to_owned();
            assert!(suite.lines().any(|line| line.starts_with(&format!("suite!({name}, "))), "{name}");
            backends += 1;
        }
    }
    assert!(backends > 0);
}

suite!(sqlite, super::StoreLocation::directory);
suite!(postgres, super::server_database);
