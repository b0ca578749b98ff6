-- Let the lock live on at this master if the value still has it.
-- KEYS[1] the lock; ARGV[1] the value of the grant, ARGV[2] milliseconds from now
-- Returns 1, or 0 when it is gone or another's.
if redis.call('GET', KEYS[1]) == ARGV[1] then
  return redis.call('PEXPIRE', KEYS[1], ARGV[2])
end
return 0
