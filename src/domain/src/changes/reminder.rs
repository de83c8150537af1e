//! Reminders of changes that nobody has decided on. They only announce; no transition takes place.

use jiff::{SignedDuration, Timestamp};

use super::Terms;

/// The maximum number of reminders of one change.
const MAX_REMINDERS: i64 = 10;

impl Terms {
    /// Returns the time of the first reminder after `time` of a change that was proposed at `created_at`, or `None` if there
    /// is none any more.
    pub fn next_reminder(&self, created_at: Timestamp, time: Timestamp) -> Option<Timestamp> {
        let interval = i64::try_from(self.remind?).ok()?.max(1);
        let past_intervals = time.duration_since(created_at).as_secs().max(0) / interval;
        let seconds = (past_intervals < MAX_REMINDERS).then(|| (past_intervals + 1).checked_mul(interval))??;
        created_at.checked_add(SignedDuration::from_secs(seconds)).ok()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reminders_repeat_ten_times_from_the_proposal_on() {
        let at = |seconds: i64| Timestamp::from_second(1_000_000 + seconds).unwrap();
        let terms = Terms { remind: Some(60), ..Terms::default() };
        for (time, next) in [
            (-9, Some(60)),
            (0, Some(60)),
            (59, Some(60)),
            (60, Some(120)),
            (599, Some(600)),
            (600, None),
            (9999, None),
        ] {
            assert_eq!(terms.next_reminder(at(0), at(time)), next.map(at), "{time}");
        }
        assert_eq!(Terms::default().next_reminder(at(0), at(0)), None);
        let endless = Terms { remind: Some(u64::MAX), ..Terms::default() };
        assert_eq!(endless.next_reminder(at(0), at(0)), None);
    }
}
