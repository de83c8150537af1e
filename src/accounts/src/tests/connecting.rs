//! Tests of consents, of the isolation of accounts, and of disconnecting.

use super::*;
use crate::FinishedConsent;
use countersign_config::AccountKind;
use countersign_protocol::ErrorKind;

fn gateway_oauth() -> UpstreamOAuth {
    UpstreamOAuth { account: AccountKind::Gateway, ..UpstreamOAuth::default() }
}

#[actix::test]
async fn first_requests_carry_no_token() {
    let fixture = Fixture::new(UpstreamOAuth::default());
    let node = fixture.node();
    let credentials = fixture.credentials(&node, "ann");
    assert_eq!(authorize(&*credentials).await.unwrap(), "");
    credentials.prepare().await.unwrap();
    assert!(node.list_statuses(&person("ann")).await.unwrap().is_empty(), "it is not known that it needs accounts");
    assert_consent_needed(refuse(&*credentials, 401, "Bearer scope=\"a b\"").await, "connected first");
    assert_consent_needed(authorize(&*credentials).await, "connected first");
    assert_consent_needed(fixture.credentials(&node, "bob").prepare().await, "connected first");
    assert!(!node.list_statuses(&person("ann")).await.unwrap()[0].is_connected);
    assert_eq!(connect(&node, "ann").await.unwrap(), "a b");
}

#[actix::test]
async fn consent_connects_one_person_at_any_node() {
    let fixture = Fixture::new(UpstreamOAuth::default());
    let (first_node, second_node) = (fixture.node(), fixture.node());
    let started = first_node.begin_consent("notion", &person("ann"), Timestamp::now()).await.unwrap();
    assert_eq!(parameter(&started.url, "resource"), format!("{}/mcp", fixture.provider.url));
    assert_eq!(parameter(&started.url, "redirect_uri"), "http://127.0.0.1:9/api/servers/callback");
    let now = Timestamp::now();
    let FinishedConsent { server, started_by } = second_node
        .finish_consent(&answer_query(&started.url), Some(&started.cookie), &FakeKeys::default(), now)
        .await
        .unwrap();
    assert_eq!((server.as_str(), started_by.as_str()), ("notion", "ann-agent"));
    let holder = AccountHolder::Person("ann".into());
    assert_eq!(*fixture.changes.lock().unwrap(), [("notion".to_owned(), holder.clone())]);
    assert_eq!(authorize(&*fixture.credentials(&second_node, "ann")).await.unwrap(), "Bearer access-1");
    assert_consent_needed(authorize(&*fixture.credentials(&second_node, "bob")).await, "connected first");
    assert_eq!(second_node.known_holders(&fixture.server()), [holder]);
    let statuses = second_node.list_statuses(&person("ann")).await.unwrap();
    assert!(statuses[0].is_connected && statuses[0].problem.is_none());
    assert_eq!(statuses[0].issuer.as_ref(), Some(&fixture.provider.url));
}

#[actix::test]
async fn authority_of_a_server_is_trusted_at_its_authorization_server() {
    let (provider, authorities) = FakeProvider::start_with_tls();
    let mut fixture = Fixture::with_provider(provider, UpstreamOAuth::default());
    assert_eq!(connect(&fixture.node(), "ann").await, Err(ConnectError::AuthorizationServerUnreachable));
    fixture.config.upstreams[0].authorities = Some(authorities);
    let node = fixture.node();
    connect(&node, "ann").await.unwrap();
    fixture.age_token("ann", -1).await;
    assert_eq!(authorize(&*fixture.credentials(&node, "ann")).await.unwrap(), "Bearer access-2");
}

#[actix::test]
async fn connection_at_another_node_is_used_at_once() {
    let fixture = Fixture::new(UpstreamOAuth::default());
    let (node, other) = (fixture.node(), fixture.node());
    let credentials = fixture.credentials(&other, "ann");
    assert_consent_needed(refuse(&*credentials, 401, "Bearer").await, "connected first");
    connect(&node, "ann").await.unwrap();
    assert_eq!(authorize(&*credentials).await.unwrap(), "Bearer access-1");
}

#[actix::test]
async fn disconnection_at_another_node_is_reported() {
    let fixture = Fixture::new(UpstreamOAuth::default());
    let (node, other) = (fixture.node(), fixture.node());
    connect(&node, "ann").await.unwrap();
    let credentials = fixture.credentials(&other, "ann");
    authorize(&*credentials).await.unwrap();
    let changes = || fixture.changes.lock().unwrap().len();
    assert_eq!(changes(), 1);
    fixture.store.rows.lock().unwrap().clear();
    assert_consent_needed(refuse(&*credentials, 401, "Bearer error=\"invalid_token\"").await, "connected");
    assert_eq!(changes(), 2);
}

#[actix::test]
async fn consent_of_another_browser_or_time_is_refused() {
    let fixture = Fixture::new(UpstreamOAuth::default());
    let node = fixture.node();
    let now = Timestamp::now();
    let started = node.begin_consent("notion", &person("ann"), now).await.unwrap();
    let query = answer_query(&started.url);
    let late = now + SignedDuration::from_mins(10);
    for (query, cookie, at) in [
        (query.as_str(), None, now),
        (&query, Some("x"), now),
        (&query, Some(started.cookie.as_str()), late),
        ("code=c&state=x", Some(&started.cookie), now),
        ("code=c", Some(&started.cookie), now),
    ] {
        assert_eq!(
            node.finish_consent(query, cookie, &FakeKeys::default(), at).await,
            Err(ConnectError::Interrupted),
            "{query}"
        );
    }
    let query = format!("{query}&iss=https://other.example");
    assert_eq!(
        node.finish_consent(&query, Some(&started.cookie), &FakeKeys::default(), now).await,
        Err(ConnectError::AuthorizationServerUnusable)
    );
    let query = answer_query(&started.url).replace("code=c", "error=access_denied");
    assert_eq!(
        node.finish_consent(&query, Some(&started.cookie), &FakeKeys::default(), now).await,
        Err(ConnectError::Denied)
    );
    assert_eq!(fixture.provider.count("authorization_code"), 0);
    assert!(fixture.changes.lock().unwrap().is_empty());
}

#[actix::test]
async fn consent_to_a_replaced_server_is_refused() {
    let mut fixture = Fixture::new(UpstreamOAuth::default());
    let node = fixture.node();
    let started = node.begin_consent("notion", &person("ann"), Timestamp::now()).await.unwrap();
    fixture.config.upstreams = vec![server_at("http://127.0.0.1:1/mcp", UpstreamOAuth::default())];
    node.set_servers(&fixture.config.upstreams);
    let keys = FakeKeys::default();
    let outcome =
        node.finish_consent(&answer_query(&started.url), Some(&started.cookie), &keys, Timestamp::now()).await;
    assert_eq!(outcome, Err(ConnectError::Interrupted));
    node.set_servers(&[]);
    let outcome =
        node.finish_consent(&answer_query(&started.url), Some(&started.cookie), &keys, Timestamp::now()).await;
    assert_eq!(outcome, Err(ConnectError::UnknownServer));
}

#[actix::test]
async fn metadata_of_an_earlier_challenge_is_found_after_restart() {
    let mut fixture = Fixture::new(UpstreamOAuth::default());
    let url = fixture.provider.url.clone();
    // There is no metadata at the well-known URLs of this path.
    fixture.config.upstreams = vec![server_at(&format!("{url}/mcp/other"), UpstreamOAuth::default())];
    let node = fixture.node();
    assert_eq!(connect(&node, "ann").await, Err(ConnectError::AuthorizationServerUnusable));
    let challenge = format!("Bearer resource_metadata=\"{url}/.well-known/oauth-protected-resource/mcp\"");
    assert_consent_needed(refuse(&*fixture.credentials(&node, "ann"), 401, &challenge).await, "connected first");
    connect(&node, "ann").await.unwrap();
    let restarted = fixture.node();
    for name in ["bob", "ann"] {
        connect(&restarted, name).await.unwrap();
    }
}

#[actix::test]
async fn account_at_a_replaced_server_is_not_used() {
    let mut fixture = Fixture::new(UpstreamOAuth::default());
    let node = fixture.node();
    connect(&node, "ann").await.unwrap();
    fixture.config.upstreams = vec![server_at("http://127.0.0.1:1/mcp", UpstreamOAuth::default())];
    node.set_servers(&fixture.config.upstreams);
    assert_eq!(authorize(&*fixture.credentials(&node, "ann")).await.unwrap(), "");
    assert!(node.known_holders(&fixture.server()).is_empty());
}

#[actix::test]
async fn row_under_another_key_does_not_open() {
    let fixture = Fixture::new(UpstreamOAuth::default());
    let node = fixture.node();
    connect(&node, "ann").await.unwrap();
    let row = fixture.store.rows.lock().unwrap()[&fixture.key("ann")].clone();
    assert!(!row.sealed.contains("access"));
    for (key, target) in [(fixture.key("bob"), row.target.clone()), (fixture.key("ann"), "sha256:other".to_owned())] {
        let moved =
            countersign_store::accounts::StoredAccount { key: key.clone(), target: target.clone(), ..row.clone() };
        fixture.store.rows.lock().unwrap().insert(key.clone(), moved);
        let store = SealedStore::new(Arc::clone(&fixture.store) as _, sealer());
        assert!(store.read(&key, &target).await.unwrap().is_none());
    }
}

#[actix::test]
async fn account_of_the_gateway_is_connected_by_an_admin() {
    let fixture = Fixture::new(gateway_oauth());
    let node = fixture.node();
    let (admin, now) = (Principal::new("root", Role::Admin), Timestamp::now());
    let outcome = node.begin_consent("notion", &person("ann"), now).await;
    assert_eq!(outcome.err(), Some(ConnectError::AdminOnly));
    let started = node.begin_consent("notion", &admin, now).await.unwrap();
    node.finish_consent(&answer_query(&started.url), Some(&started.cookie), &FakeKeys::default(), now).await.unwrap();
    assert_eq!(node.holder(&fixture.server(), &person("ann")), AccountHolder::Gateway);
    let credentials = node.credentials(&fixture.server(), &AccountHolder::Gateway).unwrap();
    assert_eq!(authorize(&*credentials).await.unwrap(), "Bearer access-1");
    assert_eq!(node.disconnect("notion", &person("ann")).await.unwrap_err().kind, ErrorKind::Forbidden);
    assert!(node.disconnect("notion", &admin).await.unwrap());
    assert_eq!(node.known_holders(&fixture.server()), []);
}

#[actix::test]
async fn lost_role_or_key_ends_the_consent() {
    for (oauth, role, expected) in [
        (UpstreamOAuth::default(), None, Err(ConnectError::AccessEnded)),
        (UpstreamOAuth::default(), Some(Role::Agent), Err(ConnectError::AccessEnded)),
        (UpstreamOAuth::default(), Some(Role::Viewer), Ok(())),
        (gateway_oauth(), Some(Role::Reviewer), Err(ConnectError::AdminOnly)),
        (gateway_oauth(), Some(Role::Admin), Ok(())),
    ] {
        let fixture = Fixture::new(oauth);
        let node = fixture.node();
        let began_as = Principal { key_id: Some("key_1".to_owned()), ..Principal::new("root", Role::Admin) };
        let started = node.begin_consent("notion", &began_as, Timestamp::now()).await.unwrap();
        let keys = FakeKeys(role.map(|role| ("key_1", role)).into_iter().collect());
        let query = answer_query(&started.url);
        let outcome = node.finish_consent(&query, Some(&started.cookie), &keys, Timestamp::now()).await;
        assert_eq!(outcome.map(drop), expected, "{role:?}");
        assert_eq!(fixture.store.rows.lock().unwrap().len(), usize::from(expected.is_ok()));
    }
}

#[actix::test]
async fn account_of_the_gateway_is_not_used_for_persons() {
    let mut fixture = Fixture::new(gateway_oauth());
    let (admin, node, now) = (Principal::new("root", Role::Admin), fixture.node(), Timestamp::now());
    let started = node.begin_consent("notion", &admin, now).await.unwrap();
    node.finish_consent(&answer_query(&started.url), Some(&started.cookie), &FakeKeys::default(), now).await.unwrap();
    fixture.config.upstreams[0].oauth = Some(UpstreamOAuth::default());
    node.set_servers(&fixture.config.upstreams);
    let credentials = node.credentials(&fixture.server(), &AccountHolder::Gateway).unwrap();
    assert_consent_needed(authorize(&*credentials).await, "connected first");
    assert_eq!(node.known_holders(&fixture.server()), []);
}

#[actix::test]
async fn local_mode_has_one_user() {
    let mut fixture = Fixture::new(UpstreamOAuth::default());
    fixture.config.auth.mode = AuthMode::Local;
    let node = fixture.node();
    let holders = ["ann", "bob"].map(|name| node.holder(&fixture.server(), &person(name)));
    assert_eq!(holders[0], holders[1]);
    connect(&node, "ann").await.unwrap();
    assert!(node.list_statuses(&Principal::local_agent()).await.unwrap()[0].is_connected);
}

#[actix::test]
async fn account_is_found_by_any_spelling_of_the_owner() {
    let fixture = Fixture::new(UpstreamOAuth::default());
    let node = fixture.node();
    connect(&node, "Ann").await.unwrap();
    for owner in ["ann", "ANN", "\u{ff21}nn"] {
        let AccountHolder::Person(holder) = node.holder(&fixture.server(), &person(owner)) else { panic!("{owner}") };
        assert_eq!(authorize(&*fixture.credentials(&node, &holder)).await.unwrap(), "Bearer access-1", "{owner}");
    }
    let subject = |id: &str| node.holder(&fixture.server(), &person(&format!("https://id.example#{id}")));
    assert_ne!(subject("ann"), subject("Ann"), "subjects of a provider are compared exactly");
}

#[actix::test]
async fn disconnecting_ends_the_use_at_all_nodes() {
    let fixture = Fixture::new(UpstreamOAuth::default());
    let (node, other) = (fixture.node(), fixture.node());
    connect(&node, "ann").await.unwrap();
    let credentials = [fixture.credentials(&node, "ann"), fixture.credentials(&other, "ann")];
    for credentials in &credentials {
        authorize(&**credentials).await.unwrap();
    }
    assert!(node.disconnect("notion", &person("ann")).await.unwrap());
    assert!(!node.disconnect("notion", &person("ann")).await.unwrap());
    assert_eq!(authorize(&*credentials[0]).await.unwrap(), "", "nobody is connected any more");
    let mut authorized = authorize(&*credentials[1]).await;
    for _ in 0..600 {
        if authorized.as_deref() != Ok("Bearer access-1") {
            break;
        }
        actix::clock::sleep(std::time::Duration::from_millis(100)).await;
        authorized = authorize(&*credentials[1]).await;
    }
    assert_ne!(authorized.as_deref(), Ok("Bearer access-1"));
}

#[actix::test]
async fn registration_is_shared_and_made_anew_when_forgotten() {
    let fixture = Fixture::new(UpstreamOAuth::default());
    let (node, other) = (fixture.node(), fixture.node());
    connect(&node, "ann").await.unwrap();
    connect(&other, "bob").await.unwrap();
    assert_eq!(fixture.provider.state.lock().unwrap().registrations, 1);
    fixture.provider.push_answer(401, serde_json::json!({ "error": "invalid_client" }));
    assert_eq!(connect(&node, "carl").await, Err(ConnectError::Denied));
    connect(&node, "carl").await.unwrap();
    assert_eq!(fixture.provider.last_form()["client_id"], "client-2");
    let mut moved = fixture.config.clone();
    moved.public_url = Some("http://127.0.0.1:10".to_owned());
    let moved = fixture.node_with(&moved);
    connect(&moved, "dora").await.unwrap();
    assert_eq!(fixture.provider.last_form()["client_id"], "client-3", "another redirect URI needs another client");
}

#[actix::test]
async fn unanswered_consent_registers_the_client_anew() {
    let fixture = Fixture::new(UpstreamOAuth::default());
    let node = fixture.node();
    let now = Timestamp::now();
    let begin = async |name: &str, at: Timestamp| {
        let started = node.begin_consent("notion", &person(name), at).await.unwrap();
        parameter(&started.url, "client_id")
    };
    connect(&node, "ann").await.unwrap();
    assert_eq!(begin("bob", now).await, "client-1");
    assert_eq!(begin("ann", now).await, "client-1", "a consent of somebody else does not matter");
    assert_eq!(begin("bob", now).await, "client-2", "the authorization server may have forgotten the first client");
    connect(&node, "ann").await.unwrap();
    assert_eq!(fixture.provider.last_form()["client_id"], "client-2");
    let later = now + SignedDuration::from_mins(10);
    assert_eq!(begin("bob", later).await, "client-2", "the authorization server knows the second client");
    fixture.provider.state.lock().unwrap().refuses_registrations = true;
    assert_eq!(begin("bob", later).await, "client-2", "the known client may still be valid");
    fixture.provider.state.lock().unwrap().refuses_registrations = false;
    assert_eq!(begin("bob", later).await, "client-2", "the gateway has just tried to register");
    assert_eq!(begin("bob", later + SignedDuration::from_mins(10)).await, "client-3");
}

#[actix::test]
async fn consent_at_unknown_or_unreachable_server_is_refused() {
    let fixture = Fixture::new(UpstreamOAuth::default());
    let outcome = fixture.node().begin_consent("other", &person("ann"), Timestamp::now()).await;
    assert_eq!(outcome.err(), Some(ConnectError::UnknownServer));
    let error = fixture.node().disconnect("other", &person("ann")).await.unwrap_err();
    assert_eq!(error.kind, ErrorKind::NotFound);
    fixture.provider.state.lock().unwrap().issuer_of_server = Some("http://127.0.0.1:1".to_owned());
    assert_eq!(connect(&fixture.node(), "ann").await, Err(ConnectError::AuthorizationServerUnreachable));
}

#[actix::test]
async fn configured_client_is_not_sent_to_another_issuer() {
    let oauth = UpstreamOAuth { client_id: Some("ours".to_owned()), ..UpstreamOAuth::default() };
    let fixture = Fixture::new(oauth);
    connect(&fixture.node(), "ann").await.unwrap();
    assert_eq!(fixture.provider.last_form()["client_id"], "ours");
    let other = FakeProvider::start();
    fixture.provider.state.lock().unwrap().issuer_of_server = Some(other.url.clone());
    assert_eq!(connect(&fixture.node(), "ann").await, Err(ConnectError::AuthorizationServerUnusable));
    assert!(other.state.lock().unwrap().forms.is_empty());
}
