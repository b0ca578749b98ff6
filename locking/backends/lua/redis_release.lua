-- Gives the lock back and names the next holder; for a waiter, leaves the queue.
--
-- KEYS  1 lock, 2 queue, 3 clock (see redis_queue.lua)
-- ARGV  1 owner, 2 floor, 3 fair (see there)
--       4 entry  the waiter's place to give up, '' for a holder
-- Returns 1 when the owner had the lock, else 0

local entry = ARGV[4]
local holder = redis.call('HGET', lock, 'owner')
if entry ~= '' and holder ~= asker then
  redis.call('LREM', queue, 1, entry)
end
if holder and holder ~= asker then
  return 0
end
if holder and not fair then
  -- One release in four is a direct hand-over, else whoever releases and asks again always wins.
  fair = tonumber(redis.call('HGET', lock, 'token')) % 4 == 0
end
-- An expired lock that somebody waits for is passed on as well: this may be the waiter that was
-- woken to do it.
if not pass_on(holder) then
  redis.call('DEL', lock)
end
return holder and 1 or 0
