//! Tests of bundles on the screen.

use super::*;
use crate::changes::screen::model::ListedBundle;

#[test]
fn bundle_is_selected_read_and_approved() {
    let changes = [change("chg_3", 1, "pending"), change("chg_2", 1, "pending"), change("chg_1", 1, "pending")];
    let mut app = app("reviewer", &changes, (90, 24));
    let waiting = vec!["chg_1".into(), "chg_2".into()];
    app.set_bundles(vec![ListedBundle { principal: "ci".into(), first_at: now(), waiting }]);
    assert!(screen(&mut app).contains("Bundle of ci, "), "{}", screen(&mut app));
    assert_eq!(press(&mut app, KeyCode::Char('b')), None, "it is in no bundle");
    press(&mut app, KeyCode::Down);
    for (id, progress) in [("chg_1", "selected 2, 1 read"), ("chg_2", "selected 2, 2 read")] {
        assert_eq!(press(&mut app, KeyCode::Char('b')), Some(Action::Open(id.into())));
        app.update_change(change(id, 1, "pending"), true);
        assert!(screen(&mut app).contains(progress));
    }
    press(&mut app, KeyCode::Char('b'));
    assert!(screen(&mut app).contains("All 2 are read"));
    type_keys(&mut app, "A");
    let (path, body) = post(press(&mut app, KeyCode::Enter));
    assert_eq!((path.as_str(), body["changes"].as_array().map(Vec::len)), ("decisions", Some(2)));
    app.selected.remove("chg_2");
    press(&mut app, KeyCode::Char('b'));
    assert!(!app.selected.contains("chg_2"), "what was taken out stays out");
}
