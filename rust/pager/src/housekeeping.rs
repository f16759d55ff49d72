//! What nobody asks for and must be done all the same: a dead keeper replaced, dead targets
//! forgotten, work finished that could not be when its time was.
//!
//! The thread sleeps until the keeper dies, the engine closes or a look is due.  To look at a space
//! costs a system call and memory that nobody else has in his caches, so only those are looked at
//! often that are young: what a launcher starts becomes another program in its first seconds.

use crate::disk_tier::DiskTier;
use crate::error::{Error, Result};
use crate::keeper::Keeper;
use crate::page_out::await_worker;
use crate::shared::{Bell, Kit, Shared};
use parking_lot::Mutex;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use std::os::fd::AsFd;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

/// How often young spaces are looked at.
const ROUND: Duration = Duration::from_millis(500);
/// Of the others, one in so many is looked at in each round: every one within two seconds.
const SHARES: u64 = 4;
/// A space is young for so many rounds, and at most for twice as many: ten to twenty seconds.
const YOUNG_ROUNDS: u64 = 20;
/// Pause before a keeper that could not be started, or ended at once, is started again.
const KEEPER_PAUSE: Duration = Duration::from_millis(100);

/// The keeper, which is replaced when it dies.
#[derive(Debug)]
pub struct KeeperPost {
    /// `None` while there is none, and from the engine's end on.
    pub keeper: Mutex<Option<Keeper>>,
    /// How often it was replaced.
    pub restarts: AtomicU64,
    run_dir: PathBuf,
}

impl KeeperPost {
    /// Start the first one.
    ///
    /// # Errors
    /// The kernel's answer.
    pub fn start(shared: &Shared, run_dir: PathBuf) -> Result<Self> {
        let keeper = Keeper::start(&run_dir, shared.store.disk().map(DiskTier::file))?;
        Ok(Self { keeper: Mutex::new(Some(keeper)), restarts: AtomicU64::new(0), run_dir })
    }

    /// Returns whether there was nothing to replace.
    fn replace_dead(&self, shared: &Shared, stop: &AtomicBool) -> bool {
        let mut keeper = self.keeper.lock();
        if stop.load(Ordering::Acquire) || keeper.as_ref().is_some_and(Keeper::is_alive) {
            return true;
        }
        if let Some(dead) = keeper.take() {
            dead.reap();
        }
        // It shares our descriptors from birth: nothing has to be handed over.  A failure (no
        // memory for a process) is tried again after a pause.
        if let Ok(started) = Keeper::start(&self.run_dir, shared.store.disk().map(DiskTier::file)) {
            self.restarts.fetch_add(1, Ordering::Relaxed);
            *keeper = Some(started);
        }
        false
    }
}

/// Start the thread; the bell wakes it.
///
/// # Errors
/// It could not be started.
pub fn start(
    shared: &Arc<Shared>,
    post: &Arc<KeeperPost>,
    stop: &Arc<AtomicBool>,
    bell: &Arc<Bell>,
) -> Result<JoinHandle<()>> {
    let (shared, post) = (Arc::clone(shared), Arc::clone(post));
    let (stop, bell) = (Arc::clone(stop), Arc::clone(bell));
    std::thread::Builder::new()
        .name("agentzip-house".to_owned())
        .spawn(move || {
            let mut rounds = Rounds::default();
            let mut settled = true;
            let mut due = Instant::now() + ROUND;
            while !stop.load(Ordering::Acquire) {
                wait(&post, &bell, due, settled);
                settled = post.replace_dead(&shared, &stop);
                if due <= Instant::now() {
                    let look = rounds.next(shared.next_id.load(Ordering::Relaxed));
                    sweep(&shared, look);
                    due = Instant::now() + ROUND;
                }
            }
        })
        .map_err(Error::os("starting the housekeeper"))
}

/// Sleep until there is something to do; the keeper's death counts if it has `settled`.
fn wait(post: &KeeperPost, bell: &Bell, due: Instant, settled: bool) {
    let death = post.keeper.lock().as_ref().filter(|_| settled).map(Keeper::death);
    let left = due.saturating_duration_since(Instant::now());
    let pause = if death.is_some() { left } else { left.min(KEEPER_PAUSE) };
    let pause = Timespec { tv_sec: 0, tv_nsec: pause.subsec_nanos().into() };
    let mut watched = vec![PollFd::from_borrowed_fd(bell.as_fd(), PollFlags::IN)];
    watched.extend(death.iter().map(|death| PollFd::new(&**death, PollFlags::IN)));
    // Whatever it says, everything is looked at anew.
    let _ = poll(&mut watched, Some(&pause));
}

/// Which spaces are due in a round.  Numbers of spaces only grow, so those of the young ones are
/// the highest.
#[derive(Debug, Default)]
struct Rounds {
    number: u64,
    /// The first number that is young, and the one that will be next.
    young_from: u64,
    young_next: u64,
}

impl Rounds {
    fn next(&mut self, next_id: u64) -> impl Fn(u64) -> bool + use<> {
        self.number += 1;
        if self.number.is_multiple_of(YOUNG_ROUNDS) {
            self.young_from = std::mem::replace(&mut self.young_next, next_id);
        }
        let (share, young_from) = (self.number % SHARES, self.young_from);
        move |id| id >= young_from || id % SHARES == share
    }
}

/// Of the spaces that are to be looked at: forget those whose address space is gone; finish what
/// could not be settled before; give back the memory of tables whose pages are home or gone.
pub fn sweep(shared: &Shared, look: impl Fn(u64) -> bool) {
    shared.store.references.collect();
    for space in shared.spaces_where(look) {
        if !space.is_gone() && !space.descriptor.is_alive() {
            space.set_gone();
        }
        if space.is_gone() {
            shared.forget(&space);
            continue;
        }
        if let Some(mut core) = space.core.try_lock()
            && core.unsettled
            && let Some(_operation) = space.operation.try_lock()
            && await_worker(&space.table, Instant::now())
        {
            space.settle(&mut core, shared, &mut Kit::default());
        }
        if space.table.may_have_empty_leaves()
            && let Some(_core) = space.core.try_lock()
        {
            space.table.give_back_empty();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_young_space_is_looked_at_in_each_round_and_an_old_one_in_its_share_of_them() {
        let mut rounds = Rounds::default();
        let mut looks = Vec::new();
        for number in 1..=100 {
            // Space 7 is there from the start, space 8 comes in round 50.
            let look = rounds.next(if number < 50 { 8 } else { 9 });
            looks.push((look(7), look(8)));
        }
        let seen = |rounds: &[(bool, bool)], old: bool| {
            rounds.iter().filter(|(seven, eight)| if old { *seven } else { *eight }).count()
        };
        assert_eq!(20, seen(&looks[..20], true));
        assert_eq!(15, seen(&looks[40..], true));
        assert_eq!(20, seen(&looks[49..69], false));
        assert_eq!(3, seen(&looks[90..], false));
    }
}
