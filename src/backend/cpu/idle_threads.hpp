#pragma once
/// What OpenMP threads do between operations.

namespace sherd::cpu {

/// Makes idle OpenMP threads of this process sleep after some 30 us instead of spinning for about 10 ms, which would take the cores from
/// the streams of collectives and copies, and from other ranks. threads: of a compute stream. Once per process; later calls do nothing.
/// Does nothing where OMP_WAIT_POLICY or GOMP_SPINCOUNT is set: then the user has decided.
void let_idle_threads_sleep(int threads);

}  // namespace sherd::cpu
