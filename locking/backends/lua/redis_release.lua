-- Releases the lock and grants it to the next waiter; for a waiter, leaves the queue.
--
-- KEYS  1 lock, 2 queue, 3 clock (see redis_queue.lua, to which this is appended)
-- ARGV  1 owner, 2 floor (see there)
--       3 entry  the waiter's entry to remove, '' for a holder
-- Returns 1 when the owner had the lock, {owner, token} of the holder for a waiter, else 0

local entry = ARGV[3]
local holder = redis.call('HGET', lock, 'owner')
-- On the left, it is that of a holder whose grant has ended.
if entry ~= '' and holder ~= caller and redis.call('LINDEX', queue, 0) ~= entry then
  redis.call('LREM', queue, 1, entry)
end
if holder and holder ~= caller then
  return entry ~= '' and {holder, redis.call('HGET', lock, 'token')} or 0
end
-- An expired lock with waiters is granted too: this caller may be the waiter that was woken for it.
if not grant_next(holder) then
  redis.call('DEL', lock, queue)
end
return holder and 1 or 0
