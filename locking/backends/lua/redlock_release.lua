-- Free the lock on this master if the value still has it; also undoes a vote.
-- KEYS[1] the lock; ARGV[1] the value of the grant
-- Returns 1, or 0 when it is gone or another's.
if redis.call('GET', KEYS[1]) == ARGV[1] then
  return redis.call('DEL', KEYS[1])
end
return 0
