//! Listings, searches and pages of the audit trail.

use super::*;

pub(super) async fn listings_are_filtered_paged_and_bounded(location_of: LocationOf) {
    let dir = tempfile::tempdir().unwrap();
    let store = location_of(dir.path()).open().unwrap();
    let states = [ChangeState::Pending, ChangeState::Applied, ChangeState::Stale];
    for n in 0..30 {
        let principal = if n % 2 == 0 { "even" } else { "odd" };
        write(&*store, draft_for(change(&format!("c{n}"), principal, 1, states[n % 3]), None)).await.unwrap();
    }
    let all = |states: Vec<ChangeState>, principal: Option<&str>, limit: usize| {
        let store = Arc::clone(&store);
        let principals: Vec<String> = principal.into_iter().map(ToOwned::to_owned).collect();
        async move {
            let (mut before, mut found) = (None, Vec::new());
            loop {
                let (states, principals) = (states.clone(), principals.clone());
                let query = ListQuery { states, principals, before, limit, ..ListQuery::default() };
                let page = store.list(query).await.unwrap();
                assert!(page.items.len() <= limit);
                before = page.items.last().map(|(no, _)| *no);
                found.extend(page.items.into_iter().map(|(_, c)| c.id.clone()));
                if !page.more {
                    return found;
                }
            }
        }
    };
    let expect = |keep: fn(usize) -> bool| -> Vec<String> {
        (0..30).rev().filter(|n| keep(*n)).map(|n| format!("c{n}")).collect()
    };
    for limit in [1, 7, 30, 100] {
        assert_eq!(all(vec![], None, limit).await, expect(|_| true));
        assert_eq!(all(vec![ChangeState::Pending], None, limit).await, expect(|n| n % 3 == 0));
        let two = vec![ChangeState::Stale, ChangeState::Pending, ChangeState::Stale];
        assert_eq!(all(two.clone(), None, limit).await, expect(|n| n % 3 != 1));
        assert_eq!(all(two, Some("odd"), limit).await, expect(|n| n % 3 != 1 && n % 2 == 1));
        assert_eq!(all(vec![], Some("even"), limit).await, expect(|n| n % 2 == 0));
        assert!(all(vec![], Some("nobody"), limit).await.is_empty());
        assert!(all(vec![ChangeState::Failed], None, limit).await.is_empty());
    }
    for n in 0..5 {
        let mut large = change(&format!("large{n}"), "large", 1, ChangeState::Pending);
        large.summary = "x".repeat(3 << 20);
        write(&*store, draft_for(large, None)).await.unwrap();
    }
    let query = ListQuery { principals: vec!["large".into()], limit: 100, ..ListQuery::default() };
    let page = store.list(query).await.unwrap();
    assert!(page.items.len() == 2 && page.more, "two large changes fill a page");
    assert_eq!(all(vec![], Some("large"), 100).await.len(), 5);
}

pub(super) async fn live_changes_and_counts_match_states(location_of: LocationOf) {
    let dir = tempfile::tempdir().unwrap();
    let store = location_of(dir.path()).open().unwrap();
    for (n, &state) in ChangeState::VARIANTS.iter().enumerate() {
        for m in 0..=n {
            write(&*store, draft_for(change(&format!("{}-{m}", state.as_str()), "agent", 1, state), None))
                .await
                .unwrap();
        }
    }
    let live = store.live_changes().await.unwrap();
    assert!(live.iter().all(|c| !c.state.is_final() && c.principal == "agent" && c.bytes > 100));
    let mut counts = store.count_by_state().await.unwrap();
    counts.sort_by_key(|(_, n)| *n);
    assert_eq!(counts, ChangeState::VARIANTS.iter().copied().zip(1..).collect::<Vec<_>>());
    let finals: u64 = counts.iter().filter(|(s, _)| s.is_final()).map(|(_, n)| n).sum();
    assert_eq!(live.len() as u64, counts.iter().map(|(_, n)| n).sum::<u64>() - finals);
}

pub(super) async fn overview_has_transitions_and_waiting_changes(location_of: LocationOf) {
    let dir = tempfile::tempdir().unwrap();
    let store = location_of(dir.path()).open().unwrap();
    for id in ["approved", "waiting"] {
        write(&*store, created_draft(id)).await.unwrap();
    }
    write(&*store, updated_draft("approved", 2, ChangeState::Pending, ChangeState::Approved)).await.unwrap();
    // An entry about a change that is no transition of it.
    let record = AuditRecord::new("standing_rule_created", Timestamp::UNIX_EPOCH, "alice", "{}".into());
    let record = AuditRecord { change: "approved".into(), ..record };
    write_record(&*store, record, false).await.unwrap();
    let overview = store.overview(Timestamp::UNIX_EPOCH).await.unwrap();
    assert!(overview.is_complete);
    let transitions: Vec<_> = overview.transitions.iter().map(|t| (t.change_id.as_str(), t.from, t.to)).collect();
    let expected = [
        ("approved", Some(ChangeState::Pending), ChangeState::Approved),
        ("waiting", None, ChangeState::Pending),
        ("approved", None, ChangeState::Pending),
    ];
    assert_eq!(transitions, expected, "newest first");
    let stored = store.get("waiting").await.unwrap().unwrap();
    let proposal = &overview.transitions[1];
    assert_eq!((&proposal.principal, &proposal.tool), (&stored.proposer.principal, &stored.tool));
    assert_eq!(overview.waiting_since, [proposal.created_at]);
    let later = store.overview(Timestamp::MAX).await.unwrap();
    assert!(later.transitions.is_empty() && later.waiting_since.len() == 1, "only the transitions have a start");
}

pub(super) async fn bundles_are_found_among_recent_proposals(location_of: LocationOf) {
    let dir = tempfile::tempdir().unwrap();
    let store = location_of(dir.path()).open().unwrap();
    assert_eq!(store.bundle_candidates().await.unwrap(), []);
    for id in ["waiting", "approved", "later"] {
        write(&*store, created_draft(id)).await.unwrap();
    }
    write(&*store, updated_draft("approved", 2, ChangeState::Pending, ChangeState::Approved)).await.unwrap();
    let proposals = store.bundle_candidates().await.unwrap();
    let states: Vec<_> = proposals.iter().map(|proposal| (proposal.id.as_str(), proposal.state)).collect();
    let (pending, approved) = (ChangeState::Pending, ChangeState::Approved);
    assert_eq!(
        states,
        [("waiting", pending), ("approved", approved), ("later", pending)],
        "oldest first, in any state"
    );
    let stored = store.get("later").await.unwrap().unwrap();
    let last = &proposals[2];
    assert_eq!(
        (&last.principal, &last.tool, &last.provider),
        (&stored.proposer.principal, &stored.tool, &stored.provider)
    );
}

pub(super) async fn audit_pages_form_a_valid_chain(location_of: LocationOf) {
    let dir = tempfile::tempdir().unwrap();
    let store = location_of(dir.path()).open().unwrap();
    for n in 0..10 {
        write(&*store, created_draft(&format!("c{n}"))).await.unwrap();
        write(&*store, updated_draft(&format!("c{n}"), 2, ChangeState::Pending, ChangeState::Approved)).await.unwrap();
    }
    let (mut entries, mut after) = (Vec::new(), 0);
    loop {
        let page = store.audit_after(after, 7).await.unwrap();
        let Some(last) = page.last() else { break };
        after = last.seq;
        entries.extend(page);
    }
    let mut verifier = Verifier::default();
    for entry in &entries {
        let at = entry.at.to_string();
        let content = EntryContent {
            seq: entry.seq,
            at: &at,
            change_id: &entry.change_id,
            event: &entry.event,
            from: entry.from.map(ChangeState::as_str),
            to: entry.to.map_or("", ChangeState::as_str),
            actor: &entry.actor,
            details: entry.details.get(),
        };
        verifier.check_entry(&content, &entry.prev_hash, &entry.hash).unwrap();
    }
    assert_eq!(verifier.finish().unwrap(), store.heads().await.unwrap().audit);
    let of_change = entries.iter().filter(|e| e.change_id == "c3");
    let shown: Vec<_> = of_change.map(|e| (e.event.as_str(), e.from, e.to)).collect();
    assert_eq!(
        shown,
        [
            ("created", None, Some(ChangeState::Pending)),
            ("approved", Some(ChangeState::Pending), Some(ChangeState::Approved))
        ]
    );
}

/// Returns the ids of the changes on the first page of a filtered listing.
pub(super) async fn list_ids(store: &dyn Store, states: &[ChangeState], criteria: ChangeCriteria) -> Vec<String> {
    let query = ListQuery { states: states.to_vec(), criteria, limit: 10, ..ListQuery::default() };
    store.list(query).await.unwrap().items.into_iter().map(|(_, change)| change.id.clone()).collect()
}

/// Returns the numbers of the matching entries, and the number below which the search continues.
pub(super) async fn search_numbers(
    store: &dyn Store,
    search: AuditSearch,
    before: Option<u64>,
    limit: usize,
) -> (Vec<u64>, Option<u64>) {
    let FoundEntries { entries, next } = store.search_audit(search, before, limit).await.unwrap();
    (entries.into_iter().map(|found| found.entry.seq).collect(), next)
}

pub(super) async fn searches_find_changes_and_entries(location_of: LocationOf) {
    let dir = tempfile::tempdir().unwrap();
    let store = location_of(dir.path()).open().unwrap();
    for (n, (provider, tool)) in [("fs", "write"), ("fs", "move"), ("tracker", "write")].into_iter().enumerate() {
        let mut change = change(&format!("chg_{n}"), "Zoë", 1, ChangeState::Pending);
        (change.provider, change.tool) = (provider.into(), tool.into());
        change.summary = format!("Rotate the KEYS of n\u{ba} {n}, {}% of Straße", 10 * n);
        change.created_at = time_at(i64::try_from(n).unwrap());
        write(&*store, draft_for(change, None)).await.unwrap();
    }
    let text = |text: &str| ChangeCriteria { text: Some(text.into()), ..ChangeCriteria::default() };
    let of = |provider: &str| ChangeCriteria { providers: vec![provider.into()], ..ChangeCriteria::default() };
    assert_eq!(list_ids(&*store, &[], text("rotate the keys")).await, ["chg_2", "chg_1", "chg_0"]);
    assert_eq!(list_ids(&*store, &[], text("ZOË")).await.len(), 3);
    assert_eq!(list_ids(&*store, &[], text("10%")).await, ["chg_1"], "the text has no wildcards");
    assert_eq!(list_ids(&*store, &[], of("fs")).await, ["chg_1", "chg_0"]);
    let both = ChangeCriteria { tools: vec!["write".into(), "x".into()], ..of("fs") };
    assert_eq!(list_ids(&*store, &[ChangeState::Pending], both.clone()).await, ["chg_0"]);
    assert!(list_ids(&*store, &[ChangeState::Applied], both).await.is_empty());
    let between = ChangeCriteria { since: Some(time_at(1)), until: Some(time_at(2)), ..ChangeCriteria::default() };
    assert_eq!(list_ids(&*store, &[], between).await, ["chg_1"]);
    // An edit may change the summary.
    let mut edited = change("chg_0", "Zoë", 2, ChangeState::Pending);
    edited.summary = "Something else".into();
    write(&*store, TransitionDraft { kind: EventKind::Edited, ..draft_for(edited, Some(ChangeState::Pending)) })
        .await
        .unwrap();
    assert_eq!(list_ids(&*store, &[], text("something ELSE")).await, ["chg_0"]);
    assert_eq!(list_ids(&*store, &[], text("rotate")).await.len(), 2);

    let text = |text: &str| AuditSearch { text: Some(text.into()), ..AuditSearch::default() };
    assert_eq!(
        search_numbers(&*store, text("Something"), None, 9).await,
        (vec![4, 1], None),
        "the title of the change matches"
    );
    let by_actor =
        AuditSearch { events: vec!["edited".into()], actors: vec!["alice".into()], ..AuditSearch::default() };
    assert_eq!(search_numbers(&*store, by_actor, None, 9).await, (vec![4], None));
    let of_change = AuditSearch { change: Some("chg_1".into()), ..AuditSearch::default() };
    assert_eq!(search_numbers(&*store, of_change, Some(4), 9).await.0, [2]);
    assert_eq!(search_numbers(&*store, AuditSearch::default(), None, 3).await, (vec![4, 3, 2], Some(2)));
    assert_eq!(search_numbers(&*store, AuditSearch::default(), Some(2), 3).await, (vec![1], None));
    let titles = store.search_audit(AuditSearch::default(), None, 1).await.unwrap();
    assert_eq!(titles.entries[0].title.as_deref(), Some("Something else"));
    assert_eq!(store.changes_with_votes().await.unwrap(), Vec::<String>::new());
    let proposed = store.proposals_since(time_at(1)).await.unwrap();
    assert_eq!(proposed.iter().map(|proposal| proposal.at).collect::<Vec<_>>(), [time_at(1), time_at(2)]);
}

/// Characters that a backend cannot store must not make texts unreadable.
pub(super) async fn any_character_is_stored(location_of: LocationOf) {
    let dir = tempfile::tempdir().unwrap();
    let store = location_of(dir.path()).open().unwrap();
    let mut odd = change("a", "n\0ul", 1, ChangeState::Pending);
    odd.summary = "a\0b \u{1f4a9} \u{202e}".into();
    odd.idempotency_key = Some("k\0".into());
    let written = TransitionDraft { actor: "n\0ul".into(), ..draft_for(odd, None) };
    let body = written.body.clone();
    write(&*store, written).await.unwrap();
    let found = store.find_by_idempotency_key("n\0ul", "k\0").await.unwrap().unwrap();
    assert_eq!(serde_json::to_string(&*found).unwrap(), body);
    let criteria = ChangeCriteria { text: Some("b \u{1f4a9}".into()), ..ChangeCriteria::default() };
    assert_eq!(list_ids(&*store, &[], criteria).await, ["a"]);
    store.close();
    assert_eq!(location_of(dir.path()).verify_audit(None).unwrap().changes, 1);
}
