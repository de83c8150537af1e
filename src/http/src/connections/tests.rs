use std::io::{Read as _, Write as _};

use socket2::{Domain, Type};

use super::*;

fn connections(max: usize, reserved: usize) -> Connections {
    let mut config = countersign_config::Config::default().transports;
    (config.http.max_connections, config.http.reserved_connections) = (max, reserved);
    Connections::new(&config, BodyBudget::new(1 << 20, 10_000, Duration::from_secs(5)), Users::default())
}

/// Adds a connection, and returns its peer's socket too.
fn add(all: &Connections) -> (Arc<ConnectionState>, bool, Socket) {
    let (socket, peer) = Socket::pair(Domain::UNIX, Type::STREAM, None).unwrap();
    peer.set_nonblocking(true).unwrap();
    let (state, has_room) = all.add(Some(socket));
    (state, has_room, peer)
}

fn is_cut(mut peer: &Socket) -> bool {
    peer.read(&mut [0]).is_ok_and(|bytes| bytes == 0)
}

#[test]
fn unread_bytes_protect_connection_without_open_request() {
    let all = connections(1, 0);
    let (sending, _, mut peer) = add(&all);
    peer.write_all(b"GET").unwrap();
    let (over, has_room, _peer) = add(&all);
    assert!(!has_room && !is_cut(&peer));
    all.remove(&over);
    // A body stays unread while there is no room for bodies. This does not protect the connection.
    let (_request, _body) = (OpenRequest::new(&sending), AwaitedBody::new(&sending));
    let (_, has_room, _peer) = add(&all);
    assert!(has_room && is_cut(&peer));
}

#[test]
fn silent_connections_are_evicted_first_and_working_ones_never() {
    let all = connections(2, 1);
    let (working, _, working_peer) = add(&all);
    let _request = OpenRequest::new(&working);
    let (_silent, has_room, silent_peer) = add(&all);
    assert!(has_room);
    let (second, has_room, second_peer) = add(&all);
    assert!(has_room && is_cut(&silent_peer));
    drop(OpenRequest::new(&second));
    let (third, has_room, third_peer) = add(&all);
    assert!(has_room && is_cut(&second_peer) && !is_cut(&working_peer));
    // A request whose body has not arrived protects nothing.
    let (request, body) = (OpenRequest::new(&third), AwaitedBody::new(&third));
    let (fourth, has_room, _peer) = add(&all);
    assert!(has_room && is_cut(&third_peer));
    drop((request, body));
    // There is no room if all are working.
    let _busy = OpenRequest::new(&fourth);
    let (fifth, has_room, _peer) = add(&all);
    assert!(!has_room && all.is_over_limit());
    all.remove(&fifth);
    assert!(!all.is_over_limit());
    // Evicted connections are not subtracted a second time when they close.
    all.remove(&second);
    all.remove(&third);
    assert_eq!(all.http.lock().counted, 2);
}

#[test]
fn reserved_places_do_not_count_towards_the_limit() {
    let all = connections(1, 1);
    let (reviewer, _, peer) = add(&all);
    assert!(all.reserve(&reviewer) && all.reserve(&reviewer));
    let (agent, has_room, _agent_peer) = add(&all);
    let _busy = OpenRequest::new(&agent);
    assert!(has_room && !is_cut(&peer));
    let (second, has_room, _second_peer) = add(&all);
    assert!(!has_room && !all.reserve(&second), "only one place is reserved");
    all.remove(&second);
    all.remove(&reviewer);
    let (third, has_room, _third_peer) = add(&all);
    assert!(!has_room && all.reserve(&third));
    assert!(!all.is_over_limit());
}
