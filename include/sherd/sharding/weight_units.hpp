#pragma once
/// Weights in the compute type: this rank's part of each unit, and whole units gathered when the model asks for them.
#include "sherd/sharding/shard_buffer.hpp"
#include "sherd/sharding/shard_context.hpp"

namespace sherd {

class WeightUnits {
  public:
    WeightUnits(const ShardContext& context, DType dtype);
    /// Bytes of the unit buffers that gathering takes: 0 for replicas.
    static std::uint64_t gathered_bytes(const FlatLayout& layout, const ShardPlan& plan, const ShardOptions& options, DType dtype);

    void gather(int unit);  ///< starts, unless the whole unit is there already
    void get(int unit);     ///< the compute stream waits for it
    void release(int unit);
    void* unit_data(int unit) const;  ///< of the whole unit, after get()

    /// This rank's part. Whoever writes it on the compute stream calls changed() afterwards.
    const ShardBuffer& shard() const noexcept { return shard_; }
    /// From now on gathered units are out of date; later gathers wait for what is on the compute stream now.
    void changed();
    /// Brings every rank's part up to date from the owners of the optimizer's intervals: `source(unit)` is the address of the first
    /// element that this rank owns, in the compute type. Enqueued behind what is on the compute stream.
    void refresh(int unit, const void* source);
    void finish_refresh();  ///< after the last unit's refresh
    void await_refresh();   ///< what is enqueued on the compute stream from now on comes after the refresh

  private:
    struct Slot {
        DeviceMemory memory;
        int unit = -1;
        std::uint64_t version = 0;
        std::unique_ptr<Event> ready, free;
    };
    int slot_of(int unit) const noexcept;

    const ShardContext& context_;
    DType dtype_;
    bool replica_;
    ShardBuffer shard_;
    std::vector<Slot> slots_;
    std::uint64_t version_ = 1;
    std::unique_ptr<Event> changed_;
};

}  // namespace sherd
