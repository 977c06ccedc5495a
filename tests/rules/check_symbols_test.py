"""check_symbols_test.py LEAKY_ARCHIVE checks that check_symbols.py finds every leak of leaky.cpp, and nothing else."""

import sys

import check_symbols

C_CAUGHT = """clock_gettime gettimeofday time pthread_mutex_lock usleep fopen read printf getenv rand exp log pow sin log2
    expf cudaMalloc cuInit io_uring_queue_init""".split()
CPP_CAUGHT = """std::chrono::_V2::steady_clock::now() std::thread::detach() std::condition_variable::notify_all()
    basic_ifstream std::cout basic_ostringstream std::random_device simgrid::s4u::engine_clock()
    kvtwin::of_another_module()""".split()
FINE = ["sqrt", "std::__throw_", "_Rb_tree", "_Prime_rehash", "std::out_of_range", "operator new", "EVP_", "XXH", "mem"]
MATHS = ["exp", "expf", "log", "log2", "pow", "sin"]


def main():
    pure = check_symbols.offenders("pure", sys.argv[1])
    wrong = [f"not caught: {leak}" for leak in C_CAUGHT if leak not in pure]
    wrong += [f"not caught: {leak}" for leak in CPP_CAUGHT if not any(leak in symbol for symbol in pure)]
    wrong += [f"wrongly caught: {symbol}" for symbol in pure if any(symbol.startswith(fine) for fine in FINE)]
    maths = check_symbols.offenders("maths", sys.argv[1])
    if maths != MATHS:
        wrong.append(f"maths: {maths} instead of {MATHS}")
    print("\n".join(wrong) or f"{len(C_CAUGHT) + len(CPP_CAUGHT)} leaks caught")
    sys.exit(1 if wrong else 0)


if __name__ == "__main__":
    main()
